"""The sandbox image and the Docker Engine that runs it: what has to stand before the service can start.

`engine` finds, starts or installs an engine; `build` makes the image. Neither is imported by a running
service, which needs only the name of the image: `build.image_reference()`, importable without docker.
"""
