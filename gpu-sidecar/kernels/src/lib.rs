//! The kernels that Weir's own GPU programs launch: their PTX, and their effects as functions for a machine without a GPU.
//!
//! | kernel | parameters, in order | effect |
//! |---|---|---|
//! | `weir_spin` | `u64 ns, u32 law, u32 parameter_millionths, u32 interference_millionths` | keeps its SMs busy for `ns` |
//! | `weir_fill` | `u64 out, u64 words, u32 value` | `out[i] = value` |
//! | `weir_sum` | `u64 out, u64 in, u64 words` | `*out += Σ in[i]` |
//! | `weir_hash` | `u64 out, u64 in, u64 words` | `*out += Σ mix(i, in[i])` |
//! | `weir_layer` | those of `weir_spin`, `u64 out, u64 in, u64 words` | as `weir_hash`, and keeps its SMs busy for `ns` |
//! | `weir_hidden_layer` | those of `weir_spin`, `u64 out, u64 table, u64 index, u64 words` | as `weir_layer` of `in = table[index]` |
//! | `weir_granule_hash` | `u64 out, u64 table, u64 granules, u64 words` | for each `g` below `granules`: `out[2g..2g+2] +=` a hash of the `words` 64-bit words at `table[g]` |
//! | `weir_add` | `u64 c, u64 a, u64 b, u64 n` | `c[i] = a[i] + b[i]` |
//! | `weir_saxpy` | `u64 y, u64 x, u64 n, f32 a` | `y[i] = fma(a, x[i], y[i])` |
//! | `weir_matmul` | `u64 c, u64 a, u64 b, u32 n` | `c = a · b`, n × n, row-major |
//!
//! `out`, `in`, `table`, `a`, `b`, `c`, `x`, `y` are addresses; words are `u32` where nothing else is said, elements `f32`, sums `u64`, all modulo 2⁶⁴.
//!
//! A program loads [`PTX`] as it is; a real driver compiles it. A software GPU recognises it with [`is_ours`], looks up a
//! [`Kernel`] by its name, decodes the launch with [`Launch::decode`], and runs the function of the same name in
//! [`effect`]. Every kernel is grid-stride, so that the shape of a launch affects only its duration.
//!
//! Deliberately absent: libraries such as cuBLAS; programs of users bring theirs. Start reading in [`Launch`].
#![forbid(unsafe_code)]

pub mod effect;
mod launch;

pub use launch::{Access, Busy, DecodeError, Launch, Law};

/// PTX text of all kernels. It has no NUL at its end, which `cuModuleLoadData` requires.
pub const PTX: &str = include_str!("../weir.ptx");

const PTX_HASH: u64 = hash(PTX.as_bytes());

/// Returns the 64-bit FNV-1a hash of a module's text without trailing NULs.
#[must_use]
pub const fn hash(text: &[u8]) -> u64 {
    let mut end = text.len();
    while end > 0 && text[end - 1] == 0 {
        end -= 1;
    }
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut at = 0;
    while at < end {
        hash = (hash ^ text[at] as u64).wrapping_mul(0x0000_0100_0000_01b3);
        at += 1;
    }
    hash
}

/// Returns whether a module's text is [`PTX`], with or without trailing NULs. The texts are compared by hash.
#[must_use]
pub const fn is_ours(text: &[u8]) -> bool {
    hash(text) == PTX_HASH
}

/// One of the kernels in [`PTX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kernel {
    /// `weir_spin`, which keeps its SMs busy for a given time.
    Spin,
    /// `weir_fill`, which sets words to a value.
    Fill,
    /// `weir_sum`, which sums words.
    Sum,
    /// `weir_hash`, which sums a hash of words and their indices.
    Hash,
    /// `weir_layer`, which sums a hash of words and keeps its SMs busy for a given time.
    Layer,
    /// `weir_hidden_layer`, which does so with words whose address is in device memory.
    HiddenLayer,
    /// `weir_granule_hash`, which hashes granules of memory to 128 bits each.
    GranuleHash,
    /// `weir_add`, which adds two vectors.
    Add,
    /// `weir_saxpy`, which adds a scaled vector to another one.
    Saxpy,
    /// `weir_matmul`, which multiplies two square matrices.
    Matmul,
}

/// Position of a parameter in a launch's parameter buffer, as reported by `cuFuncGetParamInfo`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Offset from the start of the buffer, in bytes.
    pub offset: usize,
    /// Size of the parameter, in bytes.
    pub size: usize,
}

const fn parameter(offset: usize, size: usize) -> Parameter {
    Parameter { offset, size }
}

impl Kernel {
    /// All kernels, in the order of the variants.
    pub const ALL: [Self; 10] = [
        Self::Spin,
        Self::Fill,
        Self::Sum,
        Self::Hash,
        Self::Layer,
        Self::HiddenLayer,
        Self::GranuleHash,
        Self::Add,
        Self::Saxpy,
        Self::Matmul,
    ];

    /// Returns the kernel with this name, or `None` if there is none.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kernel| kernel.name() == name)
    }

    /// Returns the name of the kernel in [`PTX`].
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Spin => "weir_spin",
            Self::Fill => "weir_fill",
            Self::Sum => "weir_sum",
            Self::Hash => "weir_hash",
            Self::Layer => "weir_layer",
            Self::HiddenLayer => "weir_hidden_layer",
            Self::GranuleHash => "weir_granule_hash",
            Self::Add => "weir_add",
            Self::Saxpy => "weir_saxpy",
            Self::Matmul => "weir_matmul",
        }
    }

    /// Returns the parameters in the order of the kernel's declaration.
    #[must_use]
    pub const fn parameters(self) -> &'static [Parameter] {
        const SPIN: [Parameter; 4] = [
            parameter(0, 8),
            parameter(8, 4),
            parameter(12, 4),
            parameter(16, 4),
        ];
        const FILL: [Parameter; 3] = [parameter(0, 8), parameter(8, 8), parameter(16, 4)];
        const REDUCE: [Parameter; 3] = [parameter(0, 8), parameter(8, 8), parameter(16, 8)];
        const LAYER: [Parameter; 7] = [
            parameter(0, 8),
            parameter(8, 4),
            parameter(12, 4),
            parameter(16, 4),
            parameter(24, 8),
            parameter(32, 8),
            parameter(40, 8),
        ];
        const HIDDEN_LAYER: [Parameter; 8] = [
            parameter(0, 8),
            parameter(8, 4),
            parameter(12, 4),
            parameter(16, 4),
            parameter(24, 8),
            parameter(32, 8),
            parameter(40, 8),
            parameter(48, 8),
        ];
        const FOUR_WIDE: [Parameter; 4] = [
            parameter(0, 8),
            parameter(8, 8),
            parameter(16, 8),
            parameter(24, 8),
        ];
        const THREE_AND_A_WORD: [Parameter; 4] = [
            parameter(0, 8),
            parameter(8, 8),
            parameter(16, 8),
            parameter(24, 4),
        ];
        match self {
            Self::Spin => &SPIN,
            Self::Fill => &FILL,
            Self::Sum | Self::Hash => &REDUCE,
            Self::Layer => &LAYER,
            Self::HiddenLayer => &HIDDEN_LAYER,
            Self::GranuleHash | Self::Add => &FOUR_WIDE,
            Self::Saxpy | Self::Matmul => &THREE_AND_A_WORD,
        }
    }

    /// Returns the size of the parameter buffer in bytes, without padding after the last parameter.
    #[must_use]
    pub const fn parameter_bytes(self) -> usize {
        match self.parameters() {
            [.., last] => last.offset + last.size,
            [] => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_ptx_text_is_recognised_with_and_without_nuls() {
        let mut text = PTX.as_bytes().to_vec();
        assert!(is_ours(&text));
        text.extend([0, 0, 0]);
        assert!(is_ours(&text));
        text[100] ^= 1;
        assert!(!is_ours(&text));
        assert!(!is_ours(b""));
        assert!(!PTX.contains('\0'), "it is passed as a C string");
    }

    #[test]
    fn the_hash_is_fnv_1a() {
        assert_eq!(hash(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(hash(b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(hash(b"foobar\0"), 0x8594_4171_f739_67e8);
    }

    #[test]
    fn kernels_are_found_by_their_names() {
        for kernel in Kernel::ALL {
            assert_eq!(Kernel::by_name(kernel.name()), Some(kernel));
        }
        assert_eq!(Kernel::by_name("weir"), None);
    }

    /// Returns the types of a kernel's parameters as declared in the text.
    fn declared(kernel: Kernel) -> Vec<String> {
        let head = format!(".visible .entry {}(", kernel.name());
        let (_, rest) = PTX.split_once(&head).unwrap();
        let (list, _) = rest.split_once(')').unwrap();
        list.lines()
            .filter_map(|line| line.trim().strip_prefix(".param ."))
            .map(|line| line.split(' ').next().unwrap().to_owned())
            .collect()
    }

    #[test]
    fn parameter_layouts_match_the_text() {
        for kernel in Kernel::ALL {
            let mut end = 0_usize;
            let mut layout = Vec::new();
            for kind in declared(kernel) {
                let size: usize = kind[1..].parse::<usize>().unwrap() / 8;
                // Every parameter is aligned to its size.
                let offset = end.next_multiple_of(size);
                layout.push(Parameter { offset, size });
                end = offset + size;
            }
            assert_eq!(kernel.parameters(), layout, "{kernel:?}");
            assert_eq!(kernel.parameter_bytes(), end, "{kernel:?}");
        }
        let entries = PTX.matches(".visible .entry").count();
        assert_eq!(entries, Kernel::ALL.len());
    }
}
