/* What a program needs on the board MPS2 AN386 (Cortex-M4), as emulated by QEMU: a vector table, memory set up before
 * main(), and output through semihosting, which passes characters to the debugger, here QEMU itself.
 *
 * When main() returns, two lines follow its output: "ticks N", the ticks of a 25 MHz timer between lines of output,
 * so without the printing; and "stack N", the largest number of bytes that were on the stack. With `-icount shift=0`
 * QEMU executes one instruction each nanosecond of the emulated clock, and a tick is 40 instructions.
 */
#include <stdint.h>

extern uint32_t data_start[], data_end[], data_in_flash[], bss_start[], bss_end[], stack_top[]; /* of board.ld */

enum { SYS_WRITEC = 0x03, SYS_EXIT = 0x18 };
static const uintptr_t EXIT_SUCCESS_REASON = 0x20026, EXIT_FAILURE_REASON = 0x20023;
static const uint32_t PAINT = 0xa5a5a5a5;

struct timer {
    volatile uint32_t control, value, reload;
};
static struct timer *const timer = (struct timer *)0x40000000; /* counts down */

static uint32_t line_end, ticks; /* value of the timer when the last line ended; all ticks so far */
static int at_line_start = 1;

int main(void);

static void semihost(int operation, uintptr_t argument)
{
    register int r0 __asm__("r0") = operation;
    register uintptr_t r1 __asm__("r1") = argument;
    __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
}

int putchar(int character)
{
    if (at_line_start) {
        ticks += line_end - timer->value;
    }
    const char byte = (char)character;
    semihost(SYS_WRITEC, (uintptr_t)&byte);
    at_line_start = character == '\n';
    line_end = timer->value;
    return character;
}

static void print(const char *name, uint32_t number)
{
    char digits[10];
    int count = 0;
    while (*name) {
        putchar(*name++);
    }
    do {
        digits[count++] = (char)('0' + number % 10);
    } while (number /= 10);
    while (count) {
        putchar(digits[--count]);
    }
    putchar('\n');
}

static uint32_t stack_bytes(void)
{
    const uint32_t *word = bss_end;
    while (*word == PAINT) {
        word++;
    }
    return (uint32_t)((uintptr_t)stack_top - (uintptr_t)word);
}

static void reset(void)
{
    const uint32_t *from = data_in_flash;
    for (uint32_t *to = data_start; to < data_end;) {
        *to++ = *from++;
    }
    for (uint32_t *to = bss_start; to < bss_end;) {
        *to++ = 0;
    }
    uint32_t *here;
    __asm__ volatile("mov %0, sp" : "=r"(here));
    for (uint32_t *to = bss_end; to < here;) {
        *to++ = PAINT;
    }
    timer->reload = timer->value = UINT32_MAX;
    timer->control = 1;
    line_end = timer->value;
    const int status = main();
    const uint32_t ticks_of_main = ticks;
    print("ticks ", ticks_of_main);
    print("stack ", stack_bytes());
    semihost(SYS_EXIT, status ? EXIT_FAILURE_REASON : EXIT_SUCCESS_REASON);
}

static void fault(void)
{
    semihost(SYS_EXIT, EXIT_FAILURE_REASON);
}

__attribute__((section(".vectors"), used)) static const uintptr_t vectors[16] = {
    (uintptr_t)stack_top, (uintptr_t)reset, (uintptr_t)fault, (uintptr_t)fault, /* NMI and HardFault */
    (uintptr_t)fault,     (uintptr_t)fault, (uintptr_t)fault,                   /* memory, bus and usage faults */
};
