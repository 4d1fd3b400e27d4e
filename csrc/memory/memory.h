// Memory for weights, cache and scratch, and pages of mapped files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

namespace stretto {

// Memory on whole cache lines; large ones on huge pages where the system has them.
class Buffer {
public:
    Buffer() = default;
    explicit Buffer(size_t bytes);
    ~Buffer();
    Buffer(Buffer&& other) noexcept { *this = std::move(other); }
    Buffer& operator=(Buffer&& other) noexcept;
    uint8_t* data() const { return data_; }
    size_t size() const { return bytes_; }
    // At least `bytes` of it; what was in it is gone if it has to grow.
    uint8_t* reserve(size_t bytes);

private:
    uint8_t* data_ = nullptr;
    size_t bytes_ = 0;
    void* allocated_ = nullptr;  // where a small one begins
    void* mapped_ = nullptr;  // where a large one begins and how long it is
    size_t mapped_bytes_ = 0;
};

constexpr size_t kHugePage = size_t{2} << 20;

// Makes pages of a buffer present, zeroed if they are new, where the system does that before they are written to. Until then they
// take no memory; and whoever writes first waits for them, a few tenths of a millisecond for a huge page.
void make_present(uint8_t* at, size_t bytes);

// Advice on pages of a mapped file, where the system takes it. They are read here and there: a page that is missing comes
// alone, without its neighbours.
void read_at_random(const uint8_t* at, size_t bytes);
// They are read now, and come together if they are missing.
void read_soon(const uint8_t* at, size_t bytes);
// They are not needed any more; reading brings them back. Nothing happens to memory that is no guarded mapping (guard.h).
void read_no_more(const uint8_t* at, size_t bytes);

}  // namespace stretto
