/* A hook in C: a token that is among the last *state ones does not come again. */

#include <math.h>
#include <stdint.h>

void no_echo(float *logits, int32_t n_vocab, const int32_t *tokens, int32_t n, void *state) {
    int32_t window = *(const int32_t *)state;
    for (int32_t i = n > window ? n - window : 0; i < n; ++i) {
        if (tokens[i] < n_vocab) logits[tokens[i]] = -INFINITY;
    }
}
