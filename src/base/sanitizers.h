// Which sanitizer this is built with: PANDO_ADDRESS_SANITIZER, PANDO_THREAD_SANITIZER, 0 or 1.
#pragma once

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define PANDO_ADDRESS_SANITIZER 1
#endif
#if __has_feature(thread_sanitizer)
#define PANDO_THREAD_SANITIZER 1
#endif
#endif

#if !defined(PANDO_ADDRESS_SANITIZER)
#define PANDO_ADDRESS_SANITIZER 0
#endif
#if !defined(PANDO_THREAD_SANITIZER)
#define PANDO_THREAD_SANITIZER 0
#endif
