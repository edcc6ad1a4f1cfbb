// Whether a sanitizer watches the memory of this build: it reserves terabytes of addresses, wants to be the
// first library and has a heap of its own.
#pragma once

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define KDA_CHECK_SANITIZED true
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define KDA_CHECK_SANITIZED true
#endif
#endif
#ifndef KDA_CHECK_SANITIZED
#define KDA_CHECK_SANITIZED false
#endif

namespace kda_check {

inline constexpr bool is_sanitized = KDA_CHECK_SANITIZED;

}  // namespace kda_check
