// SPDX-License-Identifier: Apache-2.0
// Has nothing of its own: its target's precompiled headers are those of all tests.
