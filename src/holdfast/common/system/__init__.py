"""The system around the process: optional libraries, logs, errors of the operating system, and names of the JVM's world."""
