"""Images as users bring them, made of what is on the engine anyway."""

import functools
import tempfile
from pathlib import Path

import docker

from sandbox_images.build import BOOTSTRAPPED_BASE, REGISTRY_BASE, image_reference
from sandbox_images.own import build_image

PYTHON = "/opt/venv/bin/python"


@functools.cache
def client():
    return docker.from_env(timeout=600)


def base():
    """The image that the gym's own is made of, which has no Python."""
    return next(each for each in (REGISTRY_BASE, BOOTSTRAPPED_BASE) if client().images.list(name=each))


def build(dockerfile, **files):
    """Builds an image of a Dockerfile, in which BASE and GYM stand for images, and of files beside it."""
    with tempfile.TemporaryDirectory() as folder:
        text = dockerfile.replace("BASE", base()).replace("GYM", image_reference())
        Path(folder, "Dockerfile").write_text(text)
        for name, content in files.items():
            Path(folder, name).write_text(content)
        return build_image(client(), Path(folder))


def without_python():
    return build("FROM BASE\nRUN mkdir /testbed && echo of the image > /testbed/README\n")


def one_program():
    """Nothing but a program that needs no library."""
    return build("FROM BASE AS base\nFROM scratch\nCOPY --from=base /sbin/ldconfig /bin/ldconfig\n")


def with_python(more=""):
    """An interpreter with pytest, and with a module that no other has."""
    return build(
        "FROM GYM AS gym\n"
        "FROM BASE\n"
        "COPY --from=gym /usr/ /usr/\n"
        "RUN /usr/bin/python3 -m venv --without-pip --system-site-packages /opt/venv"
        " && echo 'PLACE = __file__' > /opt/venv/lib/python3.11/site-packages/only_here.py\n" + more
    )


def hostile():
    """What would get into any program that starts, and any Python."""
    return build(
        "FROM GYM AS gym\n"
        "FROM BASE\n"
        "COPY --from=gym /usr/lib/python3.11/ /usr/lib/python3.11/\n"
        "RUN echo /usr/lib/x86_64-linux-gnu/libpcre2-8.so.0 > /etc/ld.so.preload"
        " && mkdir -p /evil /etc/python3.11 /usr/lib/python3/dist-packages /usr/lib/ssl"
        ' && echo \'import os; os.environ["EVIL"] = "1"\''
        " | tee /evil/sitecustomize.py /evil/usercustomize.py /evil/json.py /evil/pytest.py"
        " /usr/lib/python3.11/sitecustomize.py /usr/lib/python3/dist-packages/sitecustomize.py"
        " && echo 'nonsense' > /usr/lib/ssl/openssl.cnf\n"
        "ENV LD_PRELOAD=/usr/lib/x86_64-linux-gnu/libpcre2-8.so.0 LD_LIBRARY_PATH=/evil PYTHONPATH=/evil"
        " PYTHONHOME=/evil PYTHONSTARTUP=/evil/json.py PYTHONINSPECT=1 GYM_WORKSPACE=/etc PATH=/evil LANG=de_DE\n"
        'USER 1234\nWORKDIR /evil\nENTRYPOINT ["/bin/false"]\nCMD ["--evil"]\n'
        "HEALTHCHECK CMD /bin/touch /tmp/evil\n"
    )
