//! Images of device code: their format, and their kernels.
//!
//! | module | contents |
//! |---|---|
//! | `ptx`, `cubin` | kernels of a PTX text, and of machine code |
//! | `fat` | parts of a fat binary, and the one that fits a device |
//! | `kernel` | what an image states about a kernel |

mod cubin;
mod fat;
mod kernel;
mod ptx;

use std::ffi::{CStr, c_void};
use std::fmt;

use object::Endianness;
use object::elf::FileHeader64;
use object::read::elf::{FileHeader as _, SectionHeader as _};

use cubin::Cubin;
use fat::Fat;
pub(crate) use kernel::KernelInfo;

use crate::error::{Error, Result};
use crate::pointer;

/// Largest length of a PTX text in bytes.
const TEXT_MAX: usize = 64 << 20;
/// Largest amount of machine code read, in bytes; the largest kernel libraries have some hundred MB.
const CODE_MAX: u64 = 1 << 30;
/// Largest number of kernels named in one message.
const NAMES_MAX: usize = 8;
/// Number of bytes shown of an unrecognized image.
const SHOWN: usize = 16;

const ELF: [u8; 4] = *b"\x7fELF";
/// Magic of `__fatBinC_Wrapper_t`, which points to a fat binary.
const WRAPPER: [u8; 4] = 0x4662_43b1_u32.to_le_bytes();
const FAT_BINARY: [u8; 4] = 0xba55_ed50_u32.to_le_bytes();
/// `EM_CUDA`, the ELF machine number of GPUs.
const CUDA_MACHINE: u16 = 190;

/// Image of a module as loaded by a program, by format.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Image {
    /// Text of a PTX module.
    Ptx(String),
    /// Machine code.
    Cubin(Cubin),
    /// An ELF file for a machine other than a GPU, with the machine number.
    OtherElf(u16),
    /// A fat binary.
    Fat(Fat),
    /// Another format, with a description.
    Other(String),
}

/// Returns the image at an address, whose length follows from its content.
pub(crate) fn at(address: *const c_void) -> Result<Image> {
    if address.is_null() {
        return Err(Error::INVALID_VALUE);
    }
    let first = pointer::bytes_at(address, 4)?;
    if first == ELF {
        return Ok(elf(&elf_at(address)?));
    }
    if first == WRAPPER {
        // Magic (4 bytes), version (4), address of the fat binary (8).
        let wrapper = pointer::bytes_at(address, 16)?;
        return match number_at::<8>(&wrapper, 8).map(u64::from_le_bytes) {
            Some(target) if target != 0 => fat_at(pointer::as_pointer::<c_void>(target)),
            _ => Ok(Image::Other("an empty fat binary wrapper".to_owned())),
        };
    }
    if first == FAT_BINARY {
        return fat_at(address);
    }
    // SAFETY: the interface requires an image that is not machine code to be text with a terminating zero.
    let text = unsafe { CStr::from_ptr(address.cast()) };
    Ok(of(text.to_bytes()))
}

/// Returns the image in a buffer.
pub(crate) fn of(bytes: &[u8]) -> Image {
    if bytes.starts_with(&ELF) {
        return elf(bytes);
    }
    if bytes.starts_with(&FAT_BINARY) {
        return Image::Fat(Fat::new(bytes.to_vec()));
    }
    // A text may include its terminating zero.
    let end = bytes.iter().position(|byte| *byte == 0);
    let text = std::str::from_utf8(&bytes[..end.unwrap_or(bytes.len())]);
    match text {
        Ok(text) if text.len() > TEXT_MAX => Image::Other(format!(
            "a text of {} bytes, at most {TEXT_MAX} are allowed",
            text.len()
        )),
        Ok(text) if text.contains(".version") => Image::Ptx(text.to_owned()),
        _ => Image::Other(other(bytes)),
    }
}

fn other(bytes: &[u8]) -> String {
    // NVVM's container of intermediate code for link-time optimisation, and CUDA Tile's.
    let known = [
        (&[0xed, 0x43, 0x4e, 0x7f][..], "LTO-IR"),
        (b"\x7fTileIR\0", "CUDA Tile IR"),
        (b"BC\xc0\xde", "LLVM bitcode"),
        (b"!<arch>\n", "an archive of object files"),
        (b"\x1f\x8b", "a gzip file"),
        (b"\x28\xb5\x2f\xfd", "a zstd file"),
    ];
    if let Some((_, name)) = known.iter().find(|(magic, _)| bytes.starts_with(magic)) {
        return (*name).to_owned();
    }
    if bytes.is_empty() {
        return "an empty image".to_owned();
    }
    let begin = bytes[..bytes.len().min(SHOWN)].escape_ascii();
    format!("an image of no known format, which begins with \"{begin}\"")
}

fn number_at<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

/// Copies an ELF file from memory: its header locates the tables, and these locate everything else.
fn elf_at(address: *const c_void) -> Result<Vec<u8>> {
    let head = pointer::bytes_at(address, size_of::<FileHeader64<Endianness>>())?;
    let Some(tables) = elf_tables(&head) else {
        return Ok(head);
    };
    let with_tables = pointer::bytes_at(address, tables)?;
    match elf_sections(&with_tables) {
        Some(all) if all > tables => pointer::bytes_at(address, all),
        _ => Ok(with_tables),
    }
}

/// Returns the end of the section headers, from the ELF header.
fn elf_tables(head: &[u8]) -> Option<usize> {
    let header = FileHeader64::<Endianness>::parse(head).ok()?;
    let order = header.endian().ok()?;
    let sections = u64::from(header.e_shnum(order)) * u64::from(header.e_shentsize(order));
    let end = header.e_shoff(order).checked_add(sections)?;
    let is_there = sections > 0 && end <= CODE_MAX;
    is_there.then(|| usize::try_from(end).ok()).flatten()
}

/// Returns the end of the last section.
fn elf_sections(bytes: &[u8]) -> Option<usize> {
    let header = FileHeader64::<Endianness>::parse(bytes).ok()?;
    let order = header.endian().ok()?;
    let sections = header.section_headers(order, bytes).ok()?;
    let ends = sections.iter().filter_map(|section| {
        let (from, length) = section.file_range(order)?;
        from.checked_add(length).filter(|end| *end <= CODE_MAX)
    });
    usize::try_from(ends.max()?).ok()
}

fn elf(bytes: &[u8]) -> Image {
    // `e_machine`
    let machine = number_at::<2>(bytes, 18).map_or(0, u16::from_le_bytes);
    if machine != CUDA_MACHINE {
        return Image::OtherElf(machine);
    }
    match cubin::read(bytes) {
        Some(cubin) => Image::Cubin(cubin),
        None => Image::Other("machine code (a cubin) that cannot be read".to_owned()),
    }
}

/// Returns the fat binary at an address.
fn fat_at(address: *const c_void) -> Result<Image> {
    let head = pointer::bytes_at(address, 16)?;
    if !head.starts_with(&FAT_BINARY) {
        return Ok(of(&head));
    }
    let length = fat_length(&head).filter(|length| *length <= CODE_MAX);
    let length = length.and_then(|length| usize::try_from(length).ok());
    let bytes = pointer::bytes_at(address, length.unwrap_or(head.len()))?;
    Ok(Image::Fat(Fat::new(bytes)))
}

/// Returns the length of a fat binary. Header: magic (4 bytes), version (2), size of the header (2), size of the rest
/// (8).
fn fat_length(head: &[u8]) -> Option<u64> {
    let header = u16::from_le_bytes(number_at(head, 6)?);
    let rest = u64::from_le_bytes(number_at(head, 8)?);
    rest.checked_add(header.into())
}

/// Returns the names of kernels.
fn names_of(kernels: &[KernelInfo]) -> Vec<String> {
    kernels.iter().map(|kernel| kernel.name.clone()).collect()
}

/// Formats a list of kernel names, with the number of omitted ones.
fn names_text(names: &[impl AsRef<str>]) -> String {
    let shown: Vec<_> = names.iter().take(NAMES_MAX).map(AsRef::as_ref).collect();
    let kernels = if names.len() == 1 {
        "kernel"
    } else {
        "kernels"
    };
    let more = match names.len().saturating_sub(NAMES_MAX) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("{kernels} {}{more}", shown.join(", "))
}

fn with_names(names: &[String]) -> String {
    if names.is_empty() {
        return String::new();
    }
    format!(" with {}", names_text(names))
}

/// Returns the architecture as part of a description; empty if it is unknown.
fn target(prefix: &str, architecture: u32) -> String {
    match architecture {
        0 => String::new(),
        own => format!(" for {prefix}_{own}"),
    }
}

impl Image {
    /// Returns the kernels which a device of this architecture can run; `None` if the image has no code for it.
    pub(crate) fn kernels(&self, device: u32) -> Option<Vec<KernelInfo>> {
        match self {
            Self::Ptx(text) => {
                let ptx = ptx::read(text);
                (ptx.architecture <= device).then_some(ptx.kernels)
            }
            Self::Cubin(cubin) => {
                fat::runs_code(cubin.architecture, device).then(|| cubin.kernels.clone())
            }
            Self::Fat(fat) => fat.kernels(device),
            Self::OtherElf(_) | Self::Other(_) => None,
        }
    }
}

impl fmt::Display for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ptx(text) => {
                let ptx = ptx::read(text);
                write!(f, "PTX{}", target("compute", ptx.architecture))?;
                f.write_str(&with_names(&names_of(&ptx.kernels)))
            }
            Self::Cubin(cubin) => {
                write!(
                    f,
                    "machine code (a cubin){}",
                    target("sm", cubin.architecture)
                )?;
                f.write_str(&with_names(&names_of(&cubin.kernels)))
            }
            Self::OtherElf(machine) => write!(f, "an ELF file of machine {machine}, no cubin"),
            Self::Fat(fat) => write!(f, "{fat}"),
            Self::Other(what) => f.write_str(what),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::fat::tests::fat;
    use super::*;

    #[test]
    fn the_parts_of_a_fat_binary_are_named() {
        let ptx = b".version 8.0\n.entry add()\n{}\n\0";
        let bytes = fat(&[
            (1, 90, ptx, 0, None),
            (2, 80, b"xyz", 0, Some(9)),
            (16, 75, b"", 0, None),
        ]);
        let text = "a fat binary (PTX for compute_90 with kernel add; machine code for sm_80, compressed; \
                    code of form 16 for sm_75)";
        assert_eq!(of(&bytes).to_string(), text);
        // In memory: directly, and through a wrapper.
        assert_eq!(at(bytes.as_ptr().cast()).unwrap().to_string(), text);
        let mut wrapper = WRAPPER.to_vec();
        wrapper.extend_from_slice(&[1, 0, 0, 0]);
        wrapper.extend_from_slice(&(bytes.as_ptr().expose_provenance() as u64).to_le_bytes());
        assert_eq!(at(wrapper.as_ptr().cast()).unwrap().to_string(), text);
    }

    #[test]
    fn a_fat_binary_with_false_lengths_is_still_described() {
        let whole = fat(&[(1, 90, b".entry a()", 0, None), (2, 80, b"xyz", 0, None)]);
        for length in 0..whole.len() {
            let _text = of(&whole[..length]).to_string();
        }
        for at in 4..whole.len() {
            let mut changed = whole.clone();
            changed[at] = 0xff;
            let _text = of(&changed).to_string();
        }
    }

    #[test]
    fn images_without_code_are_described_by_their_format() {
        for (bytes, text) in [
            (&b""[..], "an empty image"),
            (
                b"hello",
                "an image of no known format, which begins with \"hello\"",
            ),
            (
                b"\xff\x01\0",
                "an image of no known format, which begins with \"\\xff\\x01\\x00\"",
            ),
            (b"BC\xc0\xde\x01", "LLVM bitcode"),
            (b"\xed\x43\x4e\x7f\x01", "LTO-IR"),
            (b".version 7.0\n.entry b(", "PTX with kernel b"),
            (
                b".version 7.0\n.target sm_70\n.entry b(",
                "PTX for compute_70 with kernel b",
            ),
            (b".version 7.0\n\0.entry b(", "PTX"),
        ] {
            assert_eq!(of(bytes).to_string(), text);
        }
        let names: Vec<_> = (0..10).map(|n| format!("k{n}")).collect();
        assert_eq!(
            names_text(&names),
            "kernels k0, k1, k2, k3, k4, k5, k6, k7 and 2 more"
        );
        assert_eq!(of(&FAT_BINARY).to_string(), "a fat binary without parts");
    }
}
