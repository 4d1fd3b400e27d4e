#include "memory/memory.h"

#include "memory/guard.h"

#include <cstdint>
#include <cstdlib>
#include <new>
#include <utility>

#if defined(_WIN32)
#define NOMINMAX
#include <windows.h>
#else
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace stretto {

namespace {

// Zeroed pages straight from the system, or null.
void* take_pages(size_t bytes) {
#if defined(_WIN32)
    return VirtualAlloc(nullptr, bytes, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE);
#else
    void* pages = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return pages == MAP_FAILED ? nullptr : pages;
#endif
}

void give_pages_back(void* pages, [[maybe_unused]] size_t bytes) {
#if defined(_WIN32)
    VirtualFree(pages, 0, MEM_RELEASE);
#else
    munmap(pages, bytes);
#endif
}

}  // namespace

// Large ones are mapped, so that the system gets them back when they are freed.
Buffer::Buffer(size_t bytes) : bytes_(bytes) {
    if (!bytes) return;
    if (bytes >= kHugePage) {
        if (bytes > SIZE_MAX - 2 * kHugePage) throw std::bad_alloc();
        // One huge page more than asked for, so that the data can begin at a huge page's border.
        mapped_bytes_ = (bytes + kHugePage - 1) / kHugePage * kHugePage + kHugePage;
        mapped_ = take_pages(mapped_bytes_);
        if (!mapped_) throw std::bad_alloc();
        const auto address = reinterpret_cast<uintptr_t>(mapped_);
        data_ = static_cast<uint8_t*>(mapped_) + ((address + kHugePage - 1) / kHugePage * kHugePage - address);
#if defined(__linux__)
        // A wish; nothing depends on it.
        madvise(data_, bytes, MADV_HUGEPAGE);
#endif
        return;
    }
    // Aligned by hand: some C libraries never use again all of what posix_memalign gave and got back.
    allocated_ = std::malloc(bytes + 64);
    if (!allocated_) throw std::bad_alloc();
    const auto address = reinterpret_cast<uintptr_t>(allocated_);
    data_ = static_cast<uint8_t*>(allocated_) + (64 - address % 64);
}

Buffer::~Buffer() {
    if (mapped_) {
        give_pages_back(mapped_, mapped_bytes_);
    } else {
        std::free(allocated_);
    }
}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(mapped_, other.mapped_);
    std::swap(allocated_, other.allocated_);
    std::swap(mapped_bytes_, other.mapped_bytes_);
    return *this;
}

uint8_t* Buffer::reserve(size_t bytes) {
    if (bytes > bytes_) {
        *this = Buffer();  // frees the old memory first
        *this = Buffer(bytes);
    }
    return data_;
}

#if defined(__linux__)
namespace {

// Whole pages around some bytes.
struct Pages {
    uint8_t* first;
    size_t bytes;

    Pages(const uint8_t* at, size_t size) {
        static const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
        const auto begin = reinterpret_cast<uintptr_t>(at) / page * page;
        first = reinterpret_cast<uint8_t*>(begin);
        bytes = (reinterpret_cast<uintptr_t>(at) + size - begin + page - 1) / page * page;
    }
};

bool is_resident(const uint8_t* at) {
    const Pages page(at, 1);
    unsigned char found = 0;
    return mincore(page.first, page.bytes, &found) != 0 || (found & 1);
}

}  // namespace

// Systems before Linux 5.14 refuse it, and nothing depends on it.
void make_present(uint8_t* at, size_t bytes) {
    constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, which older headers lack
    const Pages pages(at, bytes);
    madvise(pages.first, pages.bytes, kPopulateWrite);
}

void read_at_random(const uint8_t* at, size_t bytes) {
    const Pages pages(at, bytes);
    madvise(pages.first, pages.bytes, MADV_RANDOM);
}

// Looking at both ends is much cheaper than asking for pages that are there.
void read_soon(const uint8_t* at, size_t bytes) {
    if (!bytes || (is_resident(at) && is_resident(at + bytes - 1))) return;
    const Pages pages(at, bytes);
    madvise(pages.first, pages.bytes, MADV_WILLNEED);
}

// Pages at the ends have other bytes too.
void read_no_more(const uint8_t* at, size_t bytes) {
    const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE)), address = reinterpret_cast<uintptr_t>(at);
    const uintptr_t first = (address + page - 1) / page * page, last = (address + bytes) / page * page;
    if (first < last && is_guarded(at, bytes)) madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}
#else
void make_present(uint8_t*, size_t) {}
void read_at_random(const uint8_t*, size_t) {}
void read_soon(const uint8_t*, size_t) {}
void read_no_more(const uint8_t*, size_t) {}
#endif

}  // namespace stretto
