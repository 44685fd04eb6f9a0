"""Window operators: assigned windows, their contents and their triggers.

`window` chooses the form by the program: aligned windows, panes, sessions and columns are fast forms of what
`triggered_windows` does for any assigner, trigger and evictor. `window_definition` says which forms continue others' state.

Invariant: every form gives the results of the plain form, whatever the cut into epochs.
"""
