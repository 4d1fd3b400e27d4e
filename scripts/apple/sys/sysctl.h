// What Apple's <sys/sysctl.h> declares of the functions that csrc/ calls: for scripts/check_compilers.sh, which compiles for
// macOS where there is no SDK of Apple's.
#pragma once

#include <stddef.h>

extern "C" int sysctlbyname(const char* name, void* old_value, size_t* old_size, void* new_value, size_t new_size);
