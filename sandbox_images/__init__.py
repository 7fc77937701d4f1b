"""The sandbox image and the Docker Engine that runs it: what has to stand before the service can start.

`engine` finds, starts or installs an engine; `build` makes the image. A running service needs only the name of that:
`build.image_reference()`, importable without docker. `own` puts the warden on top of images that tasks bring.
"""
