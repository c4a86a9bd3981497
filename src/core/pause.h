/* For loops that look out for another thread's work. */
#ifndef SLI_CORE_PAUSE_H
#define SLI_CORE_PAUSE_H

/* Tells the core that this is a waiting loop: it leaves more to others for a few cycles. */
static inline void sli_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

#endif
