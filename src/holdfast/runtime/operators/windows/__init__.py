"""Window operators: assigned windows, their contents and their triggers.

`window` chooses the form by the program. Aligned windows, panes, sessions and columns are fast forms of what
`triggered_windows` does for any assigner, trigger and evictor. `window_definition` says which forms can continue the state
of others.

Invariant: every form gives the results of `triggered_windows`, however the input is cut into epochs.
"""
