"""Runs the numbered job with one Python after the other on the executors, and prints what each has to say.

wrong_python.py <settings as JSON> <directory of the output> <Python>...
"""

from __future__ import annotations

import json
import os
import sys

import numbered

from holdfast.errors import ConfigurationError


def main(settings, output, *pythons):
    from pyspark import SparkContext

    for python in pythons:
        os.environ.pop("PYSPARK_PYTHON", None)
        env = numbered.environment({**json.loads(settings), "python.executable": python})
        env.add_python_file(numbered.__file__)
        numbered.build(env, 10, output)
        try:
            env.execute("numbered")
        except ConfigurationError as error:
            print(json.dumps(str(error)), flush=True)
        else:
            sys.exit(f"{python} was good enough")
        SparkContext._active_spark_context.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
