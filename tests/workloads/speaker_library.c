// SPDX-License-Identifier: MIT OR Apache-2.0
//
// speaker.c as a library, for speaks_by_library.c.
#define main speak
#include "speaker.c"
