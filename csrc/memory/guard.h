// Mapped files that are cut, or that a disk cannot read any more, while they are used.
//
// Reading such a page is a SIGBUS, which ends the process. Here it ends the model: the handler puts zeros in place of the
// rest of the mapping and notes that it is broken; the thread reads on, and whoever wanted the result asks `is_broken`
// afterwards. That needs no jump out of a kernel, works in any thread and costs nothing until it happens. A fault
// elsewhere goes to the handler that was there before.
#pragma once

#include <cstddef>
#include <cstdint>

namespace stretto {

// Guards a mapping of a file, until `unguard`, which must come before it is unmapped. Returns its number, or −1 if there
// are too many or the system has no such signal.
int guard(const void* at, size_t bytes);
void unguard(int number);
// Whether a page of it could not be read.
bool is_broken(int number);
// Whether some bytes lie in a guarded mapping as a whole.
bool is_guarded(const void* at, size_t bytes);
// How many mappings broke so far.
unsigned broken_mappings();

}  // namespace stretto
