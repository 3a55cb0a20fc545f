//! Reading of PTX: the target, and the kernels with their parameters (PTX ISA, "Kernel Function Parameters").
//!
//! Everything else is skipped, so that a text which no compiler accepts is read as far as it goes.

use super::kernel::{KernelInfo, PARAMETERS_MAX};
use crate::occupancy::THREADS_OF_A_BLOCK;

/// A PTX module.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Ptx {
    /// Number of the target architecture, for example 90 for `sm_90a`; 0 if none is stated.
    pub(crate) architecture: u32,
    pub(crate) kernels: Vec<KernelInfo>,
}

/// Words and punctuation of a PTX text, without comments and strings.
struct Tokens<'a> {
    rest: &'a str,
}

impl<'a> Iterator for Tokens<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        loop {
            self.rest = self.rest.trim_start();
            let skipped = if self.rest.starts_with("//") {
                self.rest.find('\n')
            } else if self.rest.starts_with("/*") {
                self.rest[2..].find("*/").map(|at| at + 4)
            } else if self.rest.starts_with('"') {
                self.rest[1..].find('"').map(|at| at + 2)
            } else {
                break;
            };
            self.rest = &self.rest[skipped.unwrap_or(self.rest.len())..];
        }
        let first = self.rest.chars().next()?;
        let end = if is_of_word(first) {
            self.rest.find(|c: char| !is_of_word(c))
        } else {
            Some(first.len_utf8())
        };
        let (token, rest) = self.rest.split_at(end.unwrap_or(self.rest.len()));
        self.rest = rest;
        Some(token)
    }
}

fn is_of_word(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '$' | '%' | '.')
}

/// Reads a PTX text.
pub(crate) fn read(text: &str) -> Ptx {
    let mut tokens = Tokens { rest: text };
    let mut ptx = Ptx {
        architecture: 0,
        kernels: Vec::new(),
    };
    while let Some(token) = tokens.next() {
        match token {
            ".target" => ptx.architecture = tokens.next().map_or(0, architecture),
            ".entry" => {
                if let Some(name) = tokens.next().filter(|name| name.starts_with(is_of_word)) {
                    ptx.kernels
                        .extend(kernel(name, ptx.architecture, &mut tokens));
                }
            }
            _ => {}
        }
    }
    ptx
}

/// Returns the number in a name such as `sm_90a`; 0 if there is none.
fn architecture(name: &str) -> u32 {
    let digits = name.trim_start_matches(|c: char| !c.is_ascii_digit());
    let end = digits.find(|c: char| !c.is_ascii_digit());
    digits[..end.unwrap_or(digits.len())].parse().unwrap_or(0)
}

/// Reads a kernel after its name. `None` for a declaration without a body, and if the parameters have no valid layout.
fn kernel(name: &str, architecture: u32, tokens: &mut Tokens<'_>) -> Option<KernelInfo> {
    let mut info = KernelInfo::new(name, architecture);
    let mut depth = 0_u32;
    let mut end = 0;
    let mut has_bound = false;
    let mut is_valid = true;
    while let Some(token) = tokens.next() {
        match token {
            // Only a declaration ends without a body.
            ";" if depth == 0 => return None,
            "{" => depth += 1,
            "}" if depth <= 1 => break,
            "}" => depth -= 1,
            ".param" if depth == 0 => {
                let (size, alignment) = variable(tokens).unwrap_or((PARAMETERS_MAX + 1, 1));
                let offset = usize::next_multiple_of(end, alignment);
                end = offset.saturating_add(size);
                // Without this parameter the next one would have its place.
                is_valid &= end <= PARAMETERS_MAX;
                if is_valid {
                    info.parameters.push(kernels::Parameter { offset, size });
                }
            }
            ".shared" if depth > 0 => {
                let Some((bytes, alignment)) = variable(tokens) else {
                    continue;
                };
                let begin = (info.shared_bytes as usize).next_multiple_of(alignment);
                info.shared_bytes =
                    u32::try_from(begin.saturating_add(bytes)).unwrap_or(u32::MAX >> 1);
            }
            ".maxntid" | ".reqntid" if depth == 0 => has_bound = true,
            number if has_bound && depth == 0 && number.parse::<u32>().is_ok() => {
                info.threads_max = bound(number, tokens);
                has_bound = false;
            }
            _ => {}
        }
    }
    info.bound_threads();
    is_valid.then_some(info)
}

/// Returns the product of up to three numbers separated by commas, of which the first was read.
fn bound(first: &str, tokens: &mut Tokens<'_>) -> u32 {
    let mut product: u32 = first.parse().unwrap_or(1);
    for _ in 0..2 {
        let before = tokens.rest;
        let next = (tokens.next() == Some(",")).then(|| tokens.next()?.parse::<u32>().ok());
        let Some(Some(number)) = next else {
            tokens.rest = before;
            break;
        };
        product = product.saturating_mul(number);
    }
    product.clamp(1, THREADS_OF_A_BLOCK)
}

/// Reads a variable after its state space, such as `.align 8 .b8 name[40]`; returns its size and alignment in bytes. `None` for
/// one without a known type.
fn variable(tokens: &mut Tokens<'_>) -> Option<(usize, usize)> {
    let (mut size, mut alignment, mut lanes) = (None, 0, 1);
    loop {
        let before = tokens.rest;
        let token = tokens.next()?;
        match token {
            // Of the memory that a pointer names, if `.ptr` came before.
            ".align" => alignment = tokens.next()?.parse().ok()?,
            ".ptr" => {
                skip_pointer(tokens);
                alignment = 0;
            }
            ".v2" => lanes = 2,
            ".v4" => lanes = 4,
            _ if token.starts_with('.') => size = size.or_else(|| type_bytes(token)),
            _ if token.starts_with(is_of_word) => break,
            _ => {
                tokens.rest = before;
                return None;
            }
        }
    }
    let element = size? * lanes;
    let mut bytes = element;
    loop {
        let before = tokens.rest;
        if tokens.next() != Some("[") {
            tokens.rest = before;
            break;
        }
        let count = tokens.next()?;
        // An array without a length has no bytes of its own.
        let count = if count == "]" {
            0
        } else {
            let count: usize = match count.strip_prefix("0x") {
                Some(digits) => usize::from_str_radix(digits, 16).ok()?,
                None => count.parse().ok()?,
            };
            (tokens.next()? == "]").then_some(count)?
        };
        bytes = bytes.checked_mul(count)?;
    }
    let alignment = if alignment == 0 { element } else { alignment };
    (alignment.is_power_of_two() && alignment <= 1024).then_some((bytes, alignment))
}

/// Skips what follows `.ptr`: the state space and the alignment of the memory which the parameter names.
fn skip_pointer(tokens: &mut Tokens<'_>) {
    loop {
        let before = tokens.rest;
        match tokens.next() {
            Some(".global" | ".const" | ".shared" | ".local" | ".param") => {}
            Some(".align") => {
                let _alignment = tokens.next();
            }
            _ => {
                tokens.rest = before;
                return;
            }
        }
    }
}

/// Returns the size of a fundamental type, in bytes.
fn type_bytes(name: &str) -> Option<usize> {
    // Handles of textures, samplers and surfaces.
    if matches!(name, ".texref" | ".samplerref" | ".surfref") {
        return Some(8);
    }
    let digits = name.trim_start_matches(|c: char| !c.is_ascii_digit());
    match digits {
        "8" => Some(1),
        "16" => Some(2),
        "32" | "16x2" => Some(4),
        "64" => Some(8),
        "128" => Some(16),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(info: &KernelInfo) -> Vec<(usize, usize)> {
        let all = info.parameters.iter();
        all.map(|own| (own.offset, own.size)).collect()
    }

    #[test]
    fn parameters_are_laid_out_by_their_natural_alignment() {
        let ptx = read(
            ".version 8.5 // .entry no\n.target sm_90a, debug\n.address_size 64\n/* .entry no() */\n\
             .visible .entry k(\n.param .u8 k_0,\n.param .u64 .ptr .global .align 32 k_1,\n.param .align 16 .b8 k_2[20],\n\
             .param .f32 k_3\n, .param .v2 .f32 k_4)\n.maxntid 128, 2, 1\n{ .reg .b32 %r<3>;\n\
             .shared .align 4 .b8 s[10]; { .shared .f64 t; } ld.param.u64 %rd1, [k_1];\nret; }\n.func f() { }\n.entry l() { }",
        );
        assert_eq!(ptx.architecture, 90);
        let names: Vec<_> = ptx.kernels.iter().map(|own| own.name.as_str()).collect();
        assert_eq!(names, ["k", "l"]);
        let k = &ptx.kernels[0];
        assert_eq!(
            layout(k),
            [(0, 1), (8, 8), (16, 20), (36, 4), (40, 8)],
            "{k:?}"
        );
        assert_eq!((k.parameter_bytes(), k.threads_max), (48, 256));
        assert_eq!(k.shared_bytes, 24);
        assert_eq!(ptx.kernels[1], KernelInfo::new("l", 90));
    }

    #[test]
    fn weirs_own_kernels_have_the_layout_of_their_table() {
        let ptx = read(kernels::PTX);
        assert_eq!(ptx.kernels.len(), kernels::Kernel::ALL.len());
        for info in &ptx.kernels {
            let own = kernels::Kernel::by_name(&info.name).unwrap();
            assert_eq!(info.parameters, own.parameters(), "{}", info.name);
        }
    }

    #[test]
    fn a_cut_text_is_read_as_far_as_it_goes() {
        let text = ".target sm_80 .entry k(.param .align 8 .b8 p[4], .param .u32 q) .reqntid 1,2,3 { \"}\" /* { */ } .entry l";
        for end in 0..text.len() {
            let ptx = read(&text[..end]);
            assert!(ptx.kernels.len() <= 2);
        }
        assert_eq!(read(text).kernels.len(), 2);
        assert_eq!(read(text).kernels[0].threads_max, 6);
        assert_eq!(read(".entry (").kernels, []);
        // A parameter of an unknown type, and one larger than all parameters may be; a declaration.
        for text in [
            ".entry k(.param .pred p, .param .u32 r) {}",
            ".entry k(.param .b8 q[99999], .param .u32 r) {}",
            ".entry k(.param .u32 r);",
        ] {
            assert_eq!(read(text).kernels, [], "{text}");
        }
        let opaque = read(".entry k(.param .texref t, .param .b8 q[0x10], .param .u32 r) {}");
        assert_eq!(layout(&opaque.kernels[0]), [(0, 8), (8, 16), (24, 4)]);
        assert_eq!(read("/*/ .entry no() {} */ .entry l() {}").kernels.len(), 1);
    }
}
