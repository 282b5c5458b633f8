/* Convolution of int8 activations in channel, row, column order, with int32 accumulators. */

struct convolution { /* a linear layer is a convolution of kernel 1 on an image of 1 x 1 */
    const int8_t *weights; /* [channels_out][channels_in][kernel][kernel] */
    const int32_t *bias;   /* and below: one number for each output channel */
    const int32_t *multiplier;
    const uint8_t *shift;
    int channels_in, height_in, width_in;
    int channels_out, height_out, width_out;
    int kernel, stride, padding;
    int zero_in, zero_out; /* codes of the real number 0; after ReLU it is -128, the smallest, so saturating is ReLU */
};

/* requantize() needs >> of a negative number to round down; the compiler rejects an array of -1 numbers. */
typedef char right_shift_rounds_down[(-3 >> 1) == -2 ? 1 : -1];

/* sum * multiplier / 2^shift, rounded to the nearest integer (a tie: the larger one), as an output code */
static int8_t requantize(int32_t sum, int32_t multiplier, int shift, int zero_out)
{
    const int64_t half = (int64_t)1 << (shift - 1);
    const int64_t code = (((int64_t)sum * multiplier + half) >> shift) + zero_out;
    return (int8_t)(code < -128 ? -128 : code > 127 ? 127 : code);
}

/* Rows (or columns) of the kernel that lie within the image: from *first up to, and without, the returned number. */
static int clip_kernel(int origin, int kernel, int size, int *first)
{
    *first = origin < 0 ? -origin : 0;
    return origin + kernel > size ? size - origin : kernel;
}

static void convolve(const struct convolution *layer, const int8_t *input, int8_t *output)
{
    const int kernel = layer->kernel;
    for (int o = 0; o < layer->channels_out; o++) {
        const int8_t *filter = layer->weights + o * layer->channels_in * kernel * kernel;
        for (int y = 0; y < layer->height_out; y++) {
            const int top = y * layer->stride - layer->padding;
            int first_row, first_column;
            const int end_row = clip_kernel(top, kernel, layer->height_in, &first_row);
            for (int x = 0; x < layer->width_out; x++) {
                const int left = x * layer->stride - layer->padding;
                const int end_column = clip_kernel(left, kernel, layer->width_in, &first_column);
                int32_t sum = layer->bias[o];
                for (int i = 0; i < layer->channels_in; i++) {
                    for (int k = first_row; k < end_row; k++) {
                        const int8_t *row = input + (i * layer->height_in + top + k) * layer->width_in;
                        const int8_t *weights = filter + (i * kernel + k) * kernel;
                        for (int l = first_column; l < end_column; l++) {
                            sum += (row[left + l] - layer->zero_in) * weights[l];
                        }
                    }
                }
                *output++ = requantize(sum, layer->multiplier[o], layer->shift[o], layer->zero_out);
            }
        }
    }
}
