// Reads memory as fast as it can: the least time of a token whose weights lie in memory.
//
//   seconds = read_seconds(data, bytes, threads, streams)
//
// Each thread reads its part in `streams` streams (1, 2, 4 or 8), which start at equal distances.
#include <atomic>
#include <chrono>
#include <cstddef>
#include <thread>
#include <vector>

namespace {

typedef long Vector __attribute__((vector_size(64)));

template <int kStreams>
void read_part(const char* data, size_t bytes) {
    size_t length = bytes / kStreams / (4 * sizeof(Vector)) * (4 * sizeof(Vector));
    Vector even[kStreams] = {}, odd[kStreams] = {};
    for (size_t at = 0; at < length; at += 4 * sizeof(Vector)) {
        for (int stream = 0; stream < kStreams; ++stream) {
            const Vector* from = reinterpret_cast<const Vector*>(data + stream * length + at);
            even[stream] |= from[0] | from[2];
            odd[stream] |= from[1] | from[3];
        }
    }
    for (int stream = 0; stream < kStreams; ++stream) {
        asm volatile("" : : "m"(even[stream]), "m"(odd[stream]));  // keeps the loads
    }
}

void read_streams(const char* data, size_t bytes, int streams) {
    if (streams == 1) read_part<1>(data, bytes);
    if (streams == 2) read_part<2>(data, bytes);
    if (streams == 4) read_part<4>(data, bytes);
    if (streams == 8) read_part<8>(data, bytes);
}

}  // namespace

extern "C" double read_seconds(const char* data, size_t bytes, int threads, int streams) {
    size_t part = bytes / threads / 4096 * 4096;
    std::atomic<int> ready{0};
    auto run = [&](int thread) {
        ready.fetch_add(1);
        while (ready.load() < threads) std::this_thread::yield();
        read_streams(data + thread * part, part, streams);
    };
    std::vector<std::thread> others;
    for (int thread = 1; thread < threads; ++thread) others.emplace_back(run, thread);
    while (ready.load() < threads - 1) std::this_thread::yield();
    auto start = std::chrono::steady_clock::now();
    run(0);
    for (auto& other : others) other.join();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}
