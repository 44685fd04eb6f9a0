"""Sources and sinks.

Private but for ``base``, the interfaces of your own connectors: programs import from ``holdfast.datastream.connectors``.
"""
