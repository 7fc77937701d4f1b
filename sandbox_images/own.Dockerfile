# An image of somebody else's with the warden on top: one layer, in which nothing lies but /opt/gym.
#
# Nothing of OWN runs here, and nothing of it serves the warden: its Python, its libraries and their loader come along
# (see runtime.py). What OWN says of environment, user, entrypoint, command and health has no effect.
ARG GYM
ARG OWN
FROM ${GYM} AS gym
COPY runtime.py /
RUN ["/usr/bin/python3", "/runtime.py", "/collected"]

FROM ${OWN}
COPY --from=gym /collected/ /opt/gym/
USER 0
WORKDIR /
HEALTHCHECK NONE
ENTRYPOINT ["/opt/gym/runtime/bin/python3", "-s", "-P", "/opt/gym/warden"]
CMD []
