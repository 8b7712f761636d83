"""The one compiled module, which setup.cfg cannot name; all else is there.

Without a C compiler, calls of NumPy do its work. The bits are the same only if no a * b + c is rounded but once.
"""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "mpifed.core._loops",
            ["mpifed/core/_loops.c"],
            extra_compile_args=["-O3", "-ffp-contract=off", "-fno-trapping-math", "-fno-math-errno"],
            optional=True,
        )
    ]
)
