"""Says whether the Java that Spark needs is there; runs on a bare Python, before anything is installed.

The check itself is `holdfast.runtime.java`; only its two modules are imported, without the packages' own imports.
"""

from __future__ import annotations

import sys
import types
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "src"


def main() -> int:
    """Print the Java found, or what is wrong with it. Returns the exit status."""
    for name in ("holdfast", "holdfast.runtime"):
        package = types.ModuleType(name)
        package.__path__ = [str(SOURCE / name.replace(".", "/"))]
        sys.modules[name] = package
    from holdfast.errors import ConfigurationError
    from holdfast.runtime.java import find_java

    try:
        java = find_java()
    except ConfigurationError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"Java {java.version} ({java.executable})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
