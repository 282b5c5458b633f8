/* The largest code of each window, in channel, row, column order. */

struct max_pool {
    int channels, height_in, width_in;
    int height_out, width_out;
    int kernel, stride;
};

static void pool(const struct max_pool *layer, const int8_t *input, int8_t *output)
{
    for (int c = 0; c < layer->channels; c++) {
        const int8_t *channel = input + c * layer->height_in * layer->width_in;
        for (int y = 0; y < layer->height_out; y++) {
            for (int x = 0; x < layer->width_out; x++) {
                int8_t largest = -128;
                for (int k = 0; k < layer->kernel; k++) {
                    const int8_t *row = channel + (y * layer->stride + k) * layer->width_in + x * layer->stride;
                    for (int l = 0; l < layer->kernel; l++) {
                        largest = row[l] > largest ? row[l] : largest;
                    }
                }
                *output++ = largest;
            }
        }
    }
}
