"""The clocks of a job: the event time of one operator, and the processing time of the driver. Pure."""
