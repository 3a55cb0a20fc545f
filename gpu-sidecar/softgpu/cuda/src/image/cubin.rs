//! Reading of machine code for GPUs (cubin): an ELF file with one section of code for each kernel, and attributes.
//!
//! The vendor documents neither. Sections and attributes follow what its own `cuobjdump -elf` prints, and public readers of the
//! format; the architecture in the ELF flags is that of LLVM's `ELF.h` (`EF_CUDA_SM`).

use std::collections::BTreeMap;

use object::Endianness;
use object::elf::FileHeader64;
use object::read::elf::{FileHeader as _, SectionHeader as _, SectionTable};

use super::kernel::{KernelInfo, PARAMETERS_MAX, THREADS_MAX};

/// A file of machine code.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Cubin {
    /// Number of the architecture, for example 90 for `sm_90`.
    pub(crate) architecture: u32,
    pub(crate) kernels: Vec<KernelInfo>,
}

/// Version of the ABI from which on the flags have the architecture in their second byte.
const ABI_OF_LATER_FLAGS: u8 = 8;

/// Architecture from which on a kernel's shared memory begins behind what is reserved.
const ARCHITECTURE_OF_RESERVED: u32 = 90;
/// Shared memory of a block that is reserved, in bytes.
const SHARED_RESERVED: u32 = 1 << 10;

/// Attributes of `.nv.info` and `.nv.info.KERNEL`, with the names of `cuobjdump` (`EIATTR_…`).
mod attribute {
    pub(super) const MAX_THREADS: u8 = 0x05;
    pub(super) const FRAME_SIZE: u8 = 0x11;
    pub(super) const KPARAM_INFO: u8 = 0x17;
    pub(super) const REGCOUNT: u8 = 0x2f;
}

/// Reads machine code, tolerating errors: what cannot be read is absent.
pub(crate) fn read(bytes: &[u8]) -> Cubin {
    read_whole(bytes).unwrap_or_default()
}

fn read_whole(bytes: &[u8]) -> Option<Cubin> {
    let header = FileHeader64::<Endianness>::parse(bytes).ok()?;
    let order = header.endian().ok()?;
    let sections = header.sections(order, bytes).ok()?;
    let flags = header.e_flags(order).0;
    let architecture = if header.e_ident.abi_version >= ABI_OF_LATER_FLAGS {
        flags >> 8 & 0xff
    } else {
        flags & 0xff
    };
    let mut named: BTreeMap<&str, (&[u8], u64, u32)> = BTreeMap::new();
    for section in sections.iter() {
        let name = sections.section_name(order, section).ok();
        let Some(name) = name.and_then(|name| str::from_utf8(name).ok()) else {
            continue;
        };
        let data = section.data(order, bytes).unwrap_or_default();
        named.insert(name, (data, section.sh_size(order), section.sh_info(order)));
    }
    let whole = named.get(".nv.info").map_or(&[][..], |(data, ..)| *data);
    let symbols = symbols(&sections, order, bytes);
    let of_symbol = |wanted: u8| -> BTreeMap<&str, u32> {
        Attributes { rest: whole }
            .filter(|(attribute, _)| *attribute == wanted)
            .filter_map(|(_, value)| {
                let symbol = u32::from_le_bytes(value.get(..4)?.try_into().ok()?);
                let number = u32::from_le_bytes(value.get(4..8)?.try_into().ok()?);
                Some((*symbols.get(symbol as usize)?, number))
            })
            .collect()
    };
    let registers = of_symbol(attribute::REGCOUNT);
    let frames = of_symbol(attribute::FRAME_SIZE);
    // Each kernel has a constant bank for its parameters.
    let kernels = named
        .keys()
        .filter_map(|name| name.strip_prefix(".nv.constant0."));
    let kernels = kernels.map(|name| {
        let mut info = KernelInfo::new(name, architecture);
        let section = |prefix: &str| named.get(&*format!("{prefix}{name}"));
        // The code's section has the registers in the last byte of its info, if the attribute is absent.
        let in_code = section(".text.").map_or(0, |(_, _, info)| info >> 24);
        let registers = registers.get(name).copied().or(Some(in_code));
        info.registers = registers.filter(|own| *own > 0).unwrap_or(info.registers);
        info.local_bytes = frames.get(name).copied().unwrap_or(0);
        let shared = section(".nv.shared.").map_or(0, |(_, size, _)| *size);
        let shared = u32::try_from(shared).unwrap_or(u32::MAX >> 1);
        info.shared_bytes = if architecture >= ARCHITECTURE_OF_RESERVED {
            shared.saturating_sub(SHARED_RESERVED)
        } else {
            shared
        };
        if let Some((data, ..)) = section(".nv.info.") {
            describe(data, &mut info);
        }
        info
    });
    Some(Cubin {
        architecture,
        kernels: kernels.collect(),
    })
}

/// Returns the symbols' names, in the order of the symbol table.
fn symbols<'a>(
    sections: &SectionTable<'a, FileHeader64<Endianness>>,
    order: Endianness,
    bytes: &'a [u8],
) -> Vec<&'a str> {
    let Ok(table) = sections.symbols(order, bytes, object::elf::SHT_SYMTAB) else {
        return Vec::new();
    };
    let names = table.iter().map(|symbol| {
        let name = table.symbol_name(order, symbol).unwrap_or_default();
        str::from_utf8(name).unwrap_or_default()
    });
    names.collect()
}

/// Adds what a kernel's own attributes state.
fn describe(data: &[u8], info: &mut KernelInfo) {
    let mut parameters = BTreeMap::new();
    for (attribute, value) in (Attributes { rest: data }) {
        let word = |at: usize| {
            let bytes = value.get(at..at + 4)?;
            Some(u32::from_le_bytes(bytes.try_into().ok()?))
        };
        match attribute {
            attribute::KPARAM_INFO => {
                // Index (4 bytes), ordinal (2), offset (2), alignment and space, with the size from bit 18 on (4).
                let (Some(place), Some(size)) = (word(4), word(8)) else {
                    continue;
                };
                let (ordinal, offset) = (place & 0xffff, (place >> 16) as usize);
                let size = (size >> 18) as usize;
                if offset + size <= PARAMETERS_MAX {
                    parameters.insert(ordinal, kernels::Parameter { offset, size });
                }
            }
            attribute::MAX_THREADS => {
                let threads = [word(0), word(4), word(8)].map(|own| own.unwrap_or(1).max(1));
                let product = threads.into_iter().fold(1_u32, u32::saturating_mul);
                info.threads_max = product.clamp(1, THREADS_MAX);
            }
            _ => {}
        }
    }
    info.parameters = parameters.into_values().collect();
}

/// Attributes with their values. Each begins with a format and an attribute (a byte each); format 4 has a length (2 bytes) and
/// that many bytes, the others have 2 bytes.
struct Attributes<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Attributes<'a> {
    type Item = (u8, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        const SIZED: u8 = 4;
        let [format, attribute, low, high, rest @ ..] = self.rest else {
            return None;
        };
        if *format != SIZED {
            self.rest = rest;
            return Some((*attribute, &[]));
        }
        let length = usize::from(u16::from_le_bytes([*low, *high]));
        let value = rest.get(..length)?;
        self.rest = &rest[length..];
        Some((*attribute, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sized(attribute: u8, words: &[u32]) -> Vec<u8> {
        let length = u16::try_from(words.len() * 4).unwrap().to_le_bytes();
        let mut bytes = vec![4, attribute, length[0], length[1]];
        bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        bytes
    }

    #[test]
    fn a_kernels_attributes_give_parameters_and_threads() {
        let mut data = vec![3, 0x1b, 0xff, 0];
        // The last parameter comes first, as in the toolkit's files.
        data.extend(sized(0x17, &[0, 8 << 16 | 1, 4 << 18 | 0x1f000]));
        data.extend(sized(0x17, &[0, 0, 8 << 18 | 0x1f000]));
        data.extend(sized(0x05, &[64, 2, 1]));
        let mut info = KernelInfo::new("k", 90);
        describe(&data, &mut info);
        let layout: Vec<_> = info.parameters.iter().map(|p| (p.offset, p.size)).collect();
        assert_eq!(layout, [(0, 8), (8, 4)]);
        assert_eq!(info.threads_max, 128);
        for length in 0..data.len() {
            describe(&data[..length], &mut KernelInfo::new("k", 90));
        }
    }

    #[test]
    fn other_bytes_have_no_kernels() {
        assert_eq!(read(b"\x7fELF"), Cubin::default());
        assert_eq!(read(&[0; 64]), Cubin::default());
    }
}
