/* The hooks of hooks.py that are native. */

#include <stdint.h>

void empty(float *logits, int32_t n_vocab, const int32_t *tokens, int32_t n, void *state) {
    (void)logits, (void)n_vocab, (void)tokens, (void)n, (void)state;
}

void bias(float *logits, int32_t n_vocab, const int32_t *tokens, int32_t n, void *state) {
    const float *added = state;
    (void)tokens, (void)n;
    for (int32_t i = 0; i < n_vocab; ++i) logits[i] += added[i];
}
