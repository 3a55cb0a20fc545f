//! What cannot be said in Rust: jumps that leave the caller's place and arguments as they are.
//!
//! `dlsym` takes its caller's place from the return address, which says what is next in `RTLD_NEXT` and which scope is meant by
//! `RTLD_DEFAULT`. And a stub knows nothing of the arguments that it passes on.
//!
//! Each function begins with the mark that a processor which checks indirect calls wants to see there: `endbr64`, or hint 34,
//! which is `bti c` and nothing at all to an older processor.

#[cfg(not(all(
    target_os = "linux",
    target_env = "gnu",
    any(target_arch = "x86_64", target_arch = "aarch64")
)))]
compile_error!("the preload library is made for the GNU C library on x86-64 and aarch64");

/// The body of a stub: jumps to what is in its slot; if that is null, to `bind` with the slot's number aside.
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

/// The way from a stub into Rust: keeps what may be arguments, asks the function for an address by the slot's number and the
/// caller's place, and jumps there.
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

/// The body of `dlsym`: a name that begins with `cu` or `nv` and for which the second function says other than 0 goes to the
/// third, with the caller's place; everything else jumps to what is in the slot, and if that is null, to what the first gives.
#[cfg(target_arch = "x86_64")]
macro_rules! jump_by_name {
    ($slot:path, $find:path, $matters:path, $look:path) => {
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
            "call {matters}",
            "add rsp, 8",
            "pop rsi",
            "pop rdi",
            "test rax, rax",
            "je 4f",
            "mov rdx, [rsp]",
            "jmp {look}",
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
            matters = sym $matters,
            look = sym $look,
        )
    };
}

#[cfg(target_arch = "aarch64")]
macro_rules! jump_by_name {
    ($slot:path, $find:path, $matters:path, $look:path) => {
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
            "bl {matters}",
            "mov x16, x0",
            "ldp x0, x1, [sp, #16]",
            "ldp x29, x30, [sp], #32",
            "cbz x16, 4f",
            "mov x2, x30",
            "b {look}",
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
            matters = sym $matters,
            look = sym $look,
        )
    };
}

/// Jumps to what is in the slot; if that is null, after the function has filled it. What is still null is the answer.
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

/// Jumps to a function. The compiler ends the program where a function called from C might unwind, and brings along all that
/// tells of it, unless it sees that none does; what is jumped to is not called from C.
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

/// Calls a function and returns what it returns, so that the place from which it is called is here: the compiler would make a
/// jump of a call at a function's end, and leave the place of who called that.
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
