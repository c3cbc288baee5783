"""A soak: other batches in every round, for hours, on a folder that is taken up again.

The random checks of the profile are cut into *units*; a round is every unit once. A
subject's *ledger* in the folder counts its rounds and the units of the round at work,
and adds up what was checked. Failing examples are kept beside it, and their units come
first when the folder is taken up again.
"""
