"""The Kafka source: the driver's enumerator plans ranges of offsets, readers fetch them."""
