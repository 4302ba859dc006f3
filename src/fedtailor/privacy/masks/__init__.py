"""Masks: a server adds up vectors of sites, and learns nothing but their sum.

Every site adds to its vector a mask for each other site, which that one subtracts, and a mask of
its own. The masks of pairs cancel in the sum. Shares of the secrets behind all masks lie, sealed,
with the other sites; enough of them open the own masks of those who have answered, and the masks of
pairs of those who have not.

Source: Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning",
CCS 2017, arranged for a few steady sites: keys are made in advance, shares are kept sealed by the
server, and sites agree on who is in a sum only if somebody is missing.

No module of this package knows messages or folders of a deployment. ``cryptography`` is needed.
"""
