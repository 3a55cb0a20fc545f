//! Assembler bodies: jumps that preserve the caller's return address and arguments.
//!
//! The C library's `dlsym` takes the return address as its caller, which determines the next definition of `RTLD_NEXT` and the
//! scope of `RTLD_DEFAULT`. A stub has no knowledge of the arguments that it passes on.
//!
//! Each function begins with the landing pad that a processor with indirect-branch checks expects: `endbr64`, or hint 34, which
//! is `bti c` and a no-op on older processors.

#[cfg(not(all(
    target_os = "linux",
    target_env = "gnu",
    any(target_arch = "x86_64", target_arch = "aarch64")
)))]
compile_error!("the preload library supports only the GNU C library on x86-64 and aarch64");

/// Body of a stub: jumps to the address in its slot, or to `bind` if that is null, with the slot's number in a scratch register.
#[cfg(target_arch = "x86_64")]
macro_rules! jump_through_slot {
    ($slots:path, $index:literal, $bind:path) => {
        std::arch::naked_asm!(
            "endbr64",
            "mov r11, qword ptr [rip + {slots} + 8 * {index}]",
            "test r11, r11",
            "je 2f",
            "jmp r11",
            "2:",
            "mov r11d, {index}",
            "jmp {bind}",
            slots = sym $slots,
            index = const $index,
            bind = sym $bind,
        )
    };
}

#[cfg(target_arch = "aarch64")]
macro_rules! jump_through_slot {
    ($slots:path, $index:literal, $bind:path) => {
        std::arch::naked_asm!(
            "hint #34",
            "adrp x16, {slots}",
            "add x16, x16, :lo12:{slots}",
            "ldr x16, [x16, #8 * {index}]",
            "cbz x16, 2f",
            "br x16",
            "2:",
            "mov x16, #{index}",
            "b {bind}",
            slots = sym $slots,
            index = const $index,
            bind = sym $bind,
        )
    };
}

/// Entry from a stub into Rust: saves the argument registers, calls the function with the slot's number and the return address,
/// restores the registers and jumps to the address that the function returned.
#[cfg(target_arch = "x86_64")]
macro_rules! jump_to_answer {
    ($function:path) => {
        std::arch::naked_asm!(
            "push rbp",
            "mov rbp, rsp",
            "sub rsp, 192",
            "mov [rsp + 128], rdi",
            "mov [rsp + 136], rsi",
            "mov [rsp + 144], rdx",
            "mov [rsp + 152], rcx",
            "mov [rsp + 160], r8",
            "mov [rsp + 168], r9",
            "mov [rsp + 176], rax",
            "movaps [rsp], xmm0",
            "movaps [rsp + 16], xmm1",
            "movaps [rsp + 32], xmm2",
            "movaps [rsp + 48], xmm3",
            "movaps [rsp + 64], xmm4",
            "movaps [rsp + 80], xmm5",
            "movaps [rsp + 96], xmm6",
            "movaps [rsp + 112], xmm7",
            "mov edi, r11d",
            "mov rsi, [rbp + 8]",
            "call {function}",
            "mov r11, rax",
            "mov rdi, [rsp + 128]",
            "mov rsi, [rsp + 136]",
            "mov rdx, [rsp + 144]",
            "mov rcx, [rsp + 152]",
            "mov r8, [rsp + 160]",
            "mov r9, [rsp + 168]",
            "mov rax, [rsp + 176]",
            "movaps xmm0, [rsp]",
            "movaps xmm1, [rsp + 16]",
            "movaps xmm2, [rsp + 32]",
            "movaps xmm3, [rsp + 48]",
            "movaps xmm4, [rsp + 64]",
            "movaps xmm5, [rsp + 80]",
            "movaps xmm6, [rsp + 96]",
            "movaps xmm7, [rsp + 112]",
            "leave",
            "jmp r11",
            function = sym $function,
        )
    };
}

#[cfg(target_arch = "aarch64")]
macro_rules! jump_to_answer {
    ($function:path) => {
        std::arch::naked_asm!(
            "stp x29, x30, [sp, #-224]!",
            "mov x29, sp",
            "stp x0, x1, [sp, #16]",
            "stp x2, x3, [sp, #32]",
            "stp x4, x5, [sp, #48]",
            "stp x6, x7, [sp, #64]",
            "str x8, [sp, #80]",
            "stp q0, q1, [sp, #96]",
            "stp q2, q3, [sp, #128]",
            "stp q4, q5, [sp, #160]",
            "stp q6, q7, [sp, #192]",
            "mov x0, x16",
            "mov x1, x30",
            "bl {function}",
            "mov x16, x0",
            "ldp x0, x1, [sp, #16]",
            "ldp x2, x3, [sp, #32]",
            "ldp x4, x5, [sp, #48]",
            "ldp x6, x7, [sp, #64]",
            "ldr x8, [sp, #80]",
            "ldp q0, q1, [sp, #96]",
            "ldp q2, q3, [sp, #128]",
            "ldp q4, q5, [sp, #160]",
            "ldp q6, q7, [sp, #192]",
            "ldp x29, x30, [sp], #224",
            "br x16",
            function = sym $function,
        )
    };
}

/// Body of `dlsym`. A name that begins with `cu` or `nv` and for which `is_intercepted` returns non-zero goes to `lookup`, with
/// the return address. Every other look-up jumps to the address in the slot or, if that is null, to the address that `find`
/// returns.
#[cfg(target_arch = "x86_64")]
macro_rules! jump_by_name {
    ($slot:path, $find:path, $is_intercepted:path, $lookup:path) => {
        std::arch::naked_asm!(
            "endbr64",
            "test rsi, rsi",
            "je 4f",
            // `cu`
            "cmp byte ptr [rsi], 0x63",
            "jne 2f",
            "cmp byte ptr [rsi + 1], 0x75",
            "je 3f",
            "jmp 4f",
            "2:",
            // `nv`
            "cmp byte ptr [rsi], 0x6e",
            "jne 4f",
            "cmp byte ptr [rsi + 1], 0x76",
            "jne 4f",
            "3:",
            "push rdi",
            "push rsi",
            "sub rsp, 8",
            "call {is_intercepted}",
            "add rsp, 8",
            "pop rsi",
            "pop rdi",
            "test rax, rax",
            "je 4f",
            "mov rdx, [rsp]",
            "jmp {lookup}",
            "4:",
            "mov r11, qword ptr [rip + {slot}]",
            "test r11, r11",
            "je 5f",
            "jmp r11",
            "5:",
            "push rdi",
            "push rsi",
            "sub rsp, 8",
            "call {find}",
            "add rsp, 8",
            "pop rsi",
            "pop rdi",
            "test rax, rax",
            "je 6f",
            "jmp rax",
            "6:",
            "ret",
            slot = sym $slot,
            find = sym $find,
            is_intercepted = sym $is_intercepted,
            lookup = sym $lookup,
        )
    };
}

#[cfg(target_arch = "aarch64")]
macro_rules! jump_by_name {
    ($slot:path, $find:path, $is_intercepted:path, $lookup:path) => {
        std::arch::naked_asm!(
            "hint #34",
            "cbz x1, 4f",
            "ldrb w16, [x1]",
            // `cu`
            "cmp w16, #0x63",
            "b.ne 2f",
            "ldrb w16, [x1, #1]",
            "cmp w16, #0x75",
            "b.eq 3f",
            "b 4f",
            "2:",
            // `nv`
            "cmp w16, #0x6e",
            "b.ne 4f",
            "ldrb w16, [x1, #1]",
            "cmp w16, #0x76",
            "b.ne 4f",
            "3:",
            "stp x29, x30, [sp, #-32]!",
            "mov x29, sp",
            "stp x0, x1, [sp, #16]",
            "bl {is_intercepted}",
            "mov x16, x0",
            "ldp x0, x1, [sp, #16]",
            "ldp x29, x30, [sp], #32",
            "cbz x16, 4f",
            "mov x2, x30",
            "b {lookup}",
            "4:",
            "adrp x16, {slot}",
            "ldr x16, [x16, :lo12:{slot}]",
            "cbz x16, 5f",
            "br x16",
            "5:",
            "stp x29, x30, [sp, #-32]!",
            "mov x29, sp",
            "stp x0, x1, [sp, #16]",
            "bl {find}",
            "mov x16, x0",
            "ldp x0, x1, [sp, #16]",
            "ldp x29, x30, [sp], #32",
            "cbz x16, 6f",
            "br x16",
            "6:",
            "mov x0, xzr",
            "ret",
            slot = sym $slot,
            find = sym $find,
            is_intercepted = sym $is_intercepted,
            lookup = sym $lookup,
        )
    };
}

/// Jumps to the address in the slot. If that is null, calls `find` first, which fills the slot; returns null if it is still null.
#[cfg(target_arch = "x86_64")]
macro_rules! jump_through {
    ($slot:path, $find:path) => {
        std::arch::naked_asm!(
            "endbr64",
            "mov r11, qword ptr [rip + {slot}]",
            "test r11, r11",
            "je 2f",
            "jmp r11",
            "2:",
            "push rdi",
            "push rsi",
            "sub rsp, 8",
            "call {find}",
            "add rsp, 8",
            "pop rsi",
            "pop rdi",
            "mov rax, qword ptr [rip + {slot}]",
            "test rax, rax",
            "je 3f",
            "jmp rax",
            "3:",
            "ret",
            slot = sym $slot,
            find = sym $find,
        )
    };
}

#[cfg(target_arch = "aarch64")]
macro_rules! jump_through {
    ($slot:path, $find:path) => {
        std::arch::naked_asm!(
            "hint #34",
            "adrp x16, {slot}",
            "ldr x16, [x16, :lo12:{slot}]",
            "cbz x16, 2f",
            "br x16",
            "2:",
            "stp x29, x30, [sp, #-32]!",
            "mov x29, sp",
            "stp x0, x1, [sp, #16]",
            "bl {find}",
            "ldp x0, x1, [sp, #16]",
            "ldp x29, x30, [sp], #32",
            "adrp x16, {slot}",
            "ldr x16, [x16, :lo12:{slot}]",
            "cbz x16, 3f",
            "br x16",
            "3:",
            "mov x0, xzr",
            "ret",
            slot = sym $slot,
            find = sym $find,
        )
    };
}

/// Jumps to a function. A jump instead of a call from Rust: around a call from an `extern "C"` function the compiler adds code
/// that aborts on unwinding, with its support library, unless it can prove that the callee does not unwind.
#[cfg(target_arch = "x86_64")]
macro_rules! jump {
    ($function:path) => {
        std::arch::naked_asm!("endbr64", "jmp {function}", function = sym $function)
    };
}

#[cfg(target_arch = "aarch64")]
macro_rules! jump {
    ($function:path) => {
        std::arch::naked_asm!("hint #34", "b {function}", function = sym $function)
    };
}

/// Calls a function and returns its result, so that the return address which the function sees is in this library. The compiler
/// would turn a call at the end of a function into a jump, and the function would see the return address of that function's
/// caller.
#[cfg(target_arch = "x86_64")]
macro_rules! call_from_here {
    ($function:path) => {
        std::arch::naked_asm!(
            "endbr64",
            "sub rsp, 8",
            "call {function}",
            "add rsp, 8",
            "ret",
            function = sym $function,
        )
    };
}

#[cfg(target_arch = "aarch64")]
macro_rules! call_from_here {
    ($function:path) => {
        std::arch::naked_asm!(
            "hint #34",
            "stp x29, x30, [sp, #-16]!",
            "mov x29, sp",
            "bl {function}",
            "ldp x29, x30, [sp], #16",
            "ret",
            function = sym $function,
        )
    };
}

pub(crate) use {
    call_from_here, jump, jump_by_name, jump_through, jump_through_slot, jump_to_answer,
};
