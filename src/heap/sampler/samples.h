/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* sample.c, as the replaced functions call it. */
#ifndef MEMPROF_SAMPLER_SAMPLES_H
#define MEMPROF_SAMPLER_SAMPLES_H

#include "sampler.h"

/* A block that may be a sample is about to be freed. */
void freed(void *ptr);
/* A block that may be a sample is about to be resized. Returns NULL if it is no sample. */
slot *resize_begin(void *ptr);
void resize_end(slot *held, void *ptr, bool failed);

#endif
