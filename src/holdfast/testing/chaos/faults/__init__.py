"""The faults: functions of the stage that break something, repair it if necessary, and return a description."""
