int putchar(int character); /* of the C library, or of the board */

static void print_integer(int number)
{
    if (number < 0) {
        putchar('-');
        number = -number;
    }
    if (number >= 10) {
        print_integer(number / 10);
    }
    putchar('0' + number % 10);
}

/* A line of logits for each image. */
int main(void)
{
    for (int i = 0; i < IMAGES; i++) {
        const int8_t *logits = infer(images[i]);
        for (int c = 0; c < CLASSES; c++) {
            print_integer(logits[c]);
            putchar(c + 1 < CLASSES ? ' ' : '\n');
        }
    }
    return 0;
}
