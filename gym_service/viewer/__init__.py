"""The page of a service and its metrics, for people and for Prometheus: on the loopback interface, in the same process.

    POST /link            with a token: a link that opens the page, once
    GET  /open?code=...   what that link is: trades it for a cookie
    GET  /                the page, one file that loads nothing
    GET  /api/episodes    what the page lists
    GET  /api/episode     one episode, turn by turn
    GET  /metrics         for Prometheus

Everything but the link takes a token of the gym (`authorization: Bearer`) or the cookie, and shows what the token's
role may read. What only the grader knows, the evidence of a verdict, is not shown: it may have hidden tests in it, and
a token is also what the trainer has.
"""

from gym_service.viewer.site import Viewer, open_viewer

__all__ = ["Viewer", "open_viewer"]
