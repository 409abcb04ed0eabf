// SPDX-License-Identifier: Apache-2.0
// Empty: cmake/module.cmake precompiles headers for programs with this unit.
int main() {}
