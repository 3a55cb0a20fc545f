//! Recognition of images of device code: their format and the names of their kernels. A software GPU runs only PTX it
//! knows, so this serves the message about a refused image.
//!
//! The layouts of fat binaries and their wrapper are not documented by the vendor; they follow the toolkit's
//! `fatbinary_section.h` and public readers of the format.

use std::ffi::{CStr, c_void};
use std::fmt;

use object::Endianness;
use object::elf::FileHeader64;
use object::read::elf::{FileHeader as _, SectionHeader as _};

use crate::error::{Error, Result};
use crate::pointer;

/// Largest length of a PTX text in bytes.
const TEXT_MAX: usize = 64 << 20;
/// Largest amount of machine code searched for names, in bytes; the largest kernel libraries have some hundred MB.
const CODE_MAX: u64 = 1 << 30;
/// Largest number of parts examined in a fat binary, which has one for each architecture and form, some dozens in all.
const PARTS_MAX: usize = 64;
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
    /// Machine code, with the names of its kernels.
    Cubin(Vec<String>),
    /// An ELF file for a machine other than a GPU, with the machine number.
    OtherElf(u16),
    /// A fat binary, with its parts.
    Fat(Vec<Part>),
    /// Another format, with a description.
    Other(String),
}

/// A part of a fat binary.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Part {
    form: Form,
    /// Number of the architecture, for example 90 for `sm_90`.
    architecture: u32,
    /// Names of the part's kernels; `None` if the part is compressed.
    kernels: Option<Vec<String>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Ptx,
    Cubin,
    Other(u16),
}

/// Returns the names that follow `.entry` in a PTX text.
pub(crate) fn entries(text: &str) -> Vec<&str> {
    text.split(".entry")
        .skip(1)
        .filter_map(|rest| {
            let rest = rest.trim_start();
            let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_' && c != '$')?;
            (end > 0).then(|| &rest[..end])
        })
        .collect()
}

fn owned(names: Vec<&str>) -> Vec<String> {
    names.into_iter().map(str::to_owned).collect()
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
        return Image::Fat(parts(bytes));
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
    Image::Cubin(cubin_kernels(bytes))
}

/// Returns the names of the kernels in machine code: each has a constant bank for its parameters.
fn cubin_kernels(bytes: &[u8]) -> Vec<String> {
    section_names(bytes)
        .unwrap_or_default()
        .iter()
        .filter_map(|name| Some(name.strip_prefix(".nv.constant0.")?.to_owned()))
        .collect()
}

/// Returns the section names of an ELF file, tolerating errors elsewhere.
fn section_names(bytes: &[u8]) -> Option<Vec<String>> {
    let header = FileHeader64::<Endianness>::parse(bytes).ok()?;
    let order = header.endian().ok()?;
    let sections = header.sections(order, bytes).ok()?;
    let names = sections.iter().filter_map(|section| {
        let name = sections.section_name(order, section).ok()?;
        Some(std::str::from_utf8(name).ok()?.to_owned())
    });
    Some(names.collect())
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
    Ok(Image::Fat(parts(&bytes)))
}

/// Returns the length of a fat binary. Header: magic (4 bytes), version (2), size of the header (2), size of the rest
/// (8).
fn fat_length(head: &[u8]) -> Option<u64> {
    let header = u16::from_le_bytes(number_at(head, 6)?);
    let rest = u64::from_le_bytes(number_at(head, 8)?);
    rest.checked_add(header.into())
}

fn parts(bytes: &[u8]) -> Vec<Part> {
    let mut found = Vec::new();
    let header = number_at(bytes, 6).map_or(0, u16::from_le_bytes);
    let mut rest = bytes.get(usize::from(header)..).unwrap_or_default();
    while found.len() < PARTS_MAX
        && let Some((part, length)) = part(rest)
    {
        found.push(part);
        rest = rest.get(length..).unwrap_or_default();
    }
    found
}

/// Returns the first part and its length with the header. Header: form (2 bytes), version (2), size of the header (4),
/// size of the code (8), size of the compressed code (4); the architecture is at 28.
fn part(bytes: &[u8]) -> Option<(Part, usize)> {
    let form = match u16::from_le_bytes(number_at(bytes, 0)?) {
        1 => Form::Ptx,
        2 => Form::Cubin,
        other => Form::Other(other),
    };
    let header = u32::from_le_bytes(number_at(bytes, 4)?);
    let length = u64::from_le_bytes(number_at(bytes, 8)?);
    let compressed = u32::from_le_bytes(number_at(bytes, 16)?);
    let architecture = u32::from_le_bytes(number_at(bytes, 28)?);
    let header = usize::try_from(header).ok()?;
    let all = header.checked_add(usize::try_from(length).ok()?)?;
    let code = bytes.get(header..all).unwrap_or_default();
    let kernels = (compressed == 0).then(|| match form {
        Form::Ptx => owned(entries(&String::from_utf8_lossy(code))),
        Form::Cubin => cubin_kernels(code),
        Form::Other(_) => Vec::new(),
    });
    let part = Part {
        form,
        architecture,
        kernels,
    };
    Some((part, all.max(1)))
}

/// Formats a list of kernel names, with the number of omitted ones.
pub(crate) fn names_text(names: &[impl AsRef<str>]) -> String {
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

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let architecture = self.architecture;
        match self.form {
            Form::Ptx => write!(f, "PTX for compute_{architecture}")?,
            Form::Cubin => write!(f, "machine code for sm_{architecture}")?,
            Form::Other(form) => write!(f, "code of form {form} for sm_{architecture}")?,
        }
        match &self.kernels {
            None => f.write_str(", compressed"),
            Some(names) => f.write_str(&with_names(names)),
        }
    }
}

impl fmt::Display for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ptx(text) => write!(f, "PTX{}", with_names(&owned(entries(text)))),
            Self::Cubin(names) => write!(f, "machine code (a cubin){}", with_names(names)),
            Self::OtherElf(machine) => write!(f, "an ELF file of machine {machine}, no cubin"),
            Self::Fat(parts) if parts.is_empty() => f.write_str("a fat binary without parts"),
            Self::Fat(parts) => {
                let parts: Vec<_> = parts.iter().map(ToString::to_string).collect();
                write!(f, "a fat binary ({})", parts.join("; "))
            }
            Self::Other(what) => f.write_str(what),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entry_names_are_found_in_ptx() {
        let text =
            ".version 7.0\n.visible .entry _Z3addPfS_(\n)\n{}\n.weak .entry  b$2 ()\n// .entry";
        assert_eq!(entries(text), ["_Z3addPfS_", "b$2"]);
        assert_eq!(entries(kernels::PTX).len(), kernels::Kernel::ALL.len());
    }

    fn fat(parts: &[(u16, u32, &[u8], bool)]) -> Vec<u8> {
        let mut rest = Vec::new();
        for (form, architecture, code, is_compressed) in parts {
            let mut head = [0; 64];
            head[..2].copy_from_slice(&form.to_le_bytes());
            head[4] = 64;
            head[8..16].copy_from_slice(&(code.len() as u64).to_le_bytes());
            head[16] = u8::from(*is_compressed);
            head[28..32].copy_from_slice(&architecture.to_le_bytes());
            rest.extend_from_slice(&head);
            rest.extend_from_slice(code);
        }
        let mut all = FAT_BINARY.to_vec();
        all.extend_from_slice(&[1, 0, 16, 0]);
        all.extend_from_slice(&(rest.len() as u64).to_le_bytes());
        all.extend(rest);
        all
    }

    #[test]
    fn the_parts_of_a_fat_binary_are_named() {
        let ptx = b".version 8.0\n.entry add()\n{}\n\0";
        let bytes = fat(&[
            (1, 90, ptx, false),
            (2, 80, b"xyz", true),
            (16, 75, b"", false),
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
        let whole = fat(&[(1, 90, b".entry a()", false), (2, 80, b"xyz", false)]);
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
            (b".version 7.0\n\0.entry b(", "PTX"),
        ] {
            assert_eq!(of(bytes).to_string(), text);
        }
        let names: Vec<_> = (0..10).map(|n| format!("k{n}")).collect();
        assert_eq!(
            names_text(&names),
            "kernels k0, k1, k2, k3, k4, k5, k6, k7 and 2 more"
        );
        assert_eq!(
            Image::Fat(Vec::new()).to_string(),
            "a fat binary without parts"
        );
    }
}
