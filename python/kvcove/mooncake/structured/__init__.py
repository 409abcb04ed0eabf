# SPDX-License-Identifier: Apache-2.0
"""Named members, columns and batches of rows as objects of the store.

Layers, each of which knows the ones above it only::

    types      what callers hold: references, selections, schemas
    bundles    members in chunks under one manifest; the manifest is written last and removed last
    members    arrays and tensors as members: their description, and the bytes of chosen rows
    inference  which codec a column of Python values gets
    ragged     columns of numbers, arrays and tensors of different shapes
    columns    all codecs; columns of nested dicts and lists
    batches    what is a row, a field and metadata in what a caller puts
    handles    references as JSON
    ranges     ranges of members' bytes, into registered memory
    objects    named members with metadata
    catalog    which batches hold which fields of which logical keys

A reader that finds the manifest finds every member: what a put wrote is removed when it fails, and a
member that the pool has evicted is an error with its key, never a shorter value.
"""
