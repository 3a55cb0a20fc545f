//! Descriptors of tensors (`CUtensorMap`), as far as their checks and their address: no kernel of Weir's reads one. Since compute capability 9.0.

use crate::driver::driver;
use crate::error::{Error, Result};
use crate::pointer::{In, Out};

/// A descriptor. Its layout is the driver's own; here it begins with the address, and arguments follow.
pub(crate) type Contents = [u64; 16];

/// Largest number of dimensions.
const RANK_MAX: u32 = 5;
/// Alignment of a descriptor, and of a tensor and its strides, in bytes.
const ALIGNMENT: usize = 64;
const TENSOR_ALIGNMENT: u64 = 16;
/// Ranges of the elements of a dimension, of the bytes of a stride, of the elements of a dimension of a part, and of the steps.
const SIZE_MAX: u64 = 1 << 32;
const STRIDE_END: u64 = 1 << 40;
const PART_MAX: u32 = 256;
const STEP_MAX: u32 = 8;
/// Number of `CUtensorMapDataType`, of CUDA 12.0.
const ELEMENTS: u32 = 13;

/// Fails where no device has units for tensors.
fn check_devices() -> Result {
    let mut devices = driver()?.devices.iter();
    if devices.any(|device| device.part.compute_capability[0] >= 9) {
        Ok(())
    } else {
        Err(Error::NOT_SUPPORTED)
    }
}

/// The tensor of a descriptor, and the part of it that one copy moves.
#[derive(Clone, Copy)]
pub(crate) struct Tensor {
    pub(crate) element: u32,
    pub(crate) rank: u32,
    pub(crate) address: u64,
    pub(crate) sizes: In<u64>,
    pub(crate) strides: In<u64>,
    pub(crate) part: In<u32>,
    pub(crate) steps: In<u32>,
}

impl Tensor {
    fn encode(self) -> Result<Contents> {
        let rank = self.rank as usize;
        let is_shaped = (1..=RANK_MAX).contains(&self.rank) && self.element < ELEMENTS;
        if !is_shaped || !self.address.is_multiple_of(TENSOR_ALIGNMENT) || self.address == 0 {
            return Err(Error::INVALID_VALUE);
        }
        let sizes = self.sizes.list(rank)?;
        let strides = self.strides.list(rank - 1)?;
        let part = self.part.list(rank)?;
        let steps = self.steps.list(rank)?;
        let is_valid = sizes.iter().all(|size| (1..=SIZE_MAX).contains(size))
            && strides.iter().all(|&stride| {
                stride < STRIDE_END && stride > 0 && stride.is_multiple_of(TENSOR_ALIGNMENT)
            })
            && part.iter().all(|length| (1..=PART_MAX).contains(length))
            && steps.iter().all(|step| (1..=STEP_MAX).contains(step));
        if !is_valid {
            return Err(Error::INVALID_VALUE);
        }
        let kind = u64::from(self.element) << 32 | u64::from(self.rank);
        let shape = part.iter().zip(&steps).map(|(&length, &step)| {
            // Two small numbers for each dimension.
            u64::from(length) << 32 | u64::from(step)
        });
        let words = [self.address, kind].into_iter();
        let words = words.chain(sizes).chain(strides).chain(shape);
        let mut contents = Contents::default();
        for (place, word) in contents.iter_mut().zip(words) {
            *place = word;
        }
        Ok(contents)
    }
}

/// Implements `cuTensorMapEncodeTiled`: encodes a descriptor.
pub(crate) fn encode(map: Out<Contents>, tensor: Tensor) -> Result {
    check_devices()?;
    if !map.is_aligned(ALIGNMENT) {
        return Err(Error::INVALID_VALUE);
    }
    map.put(tensor.encode()?)
}

/// Implements `cuTensorMapReplaceAddress`: changes the address of a descriptor.
pub(crate) fn replace_address(map: Out<u64>, address: u64) -> Result {
    check_devices()?;
    if !map.is_aligned(ALIGNMENT) || !address.is_multiple_of(TENSOR_ALIGNMENT) || address == 0 {
        return Err(Error::INVALID_VALUE);
    }
    // The first word of the descriptor.
    map.put(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list<T: Copy>(values: &'static [T]) -> In<T> {
        In::from_raw(values.as_ptr())
    }

    fn tensor(rank: u32) -> Tensor {
        Tensor {
            element: 7,
            rank,
            address: 0x7f00_0000_0010,
            sizes: list(&[64, 1 << 32, 1, 1, 5]),
            strides: list(&[256, 512, 16, 1 << 39]),
            part: list(&[64, 256, 1, 1, 5]),
            steps: list(&[1, 8, 1, 1, 2]),
        }
    }

    #[test]
    fn a_descriptor_begins_with_the_address_and_depends_on_every_argument() {
        let whole = tensor(5).encode().unwrap();
        assert_eq!(whole[0], 0x7f00_0000_0010);
        let others = [
            tensor(4),
            Tensor {
                element: 8,
                ..tensor(5)
            },
            Tensor {
                sizes: list(&[64, 2, 1, 1, 5]),
                ..tensor(5)
            },
            Tensor {
                strides: list(&[256, 512, 16, 32]),
                ..tensor(5)
            },
            Tensor {
                part: list(&[64, 256, 1, 1, 6]),
                ..tensor(5)
            },
            Tensor {
                steps: list(&[1, 8, 1, 1, 1]),
                ..tensor(5)
            },
        ];
        for other in others {
            assert_ne!(other.encode().unwrap(), whole);
        }
    }

    #[test]
    fn a_tensor_out_of_its_ranges_is_refused() {
        let zeros = list(&[0, 0, 0, 0, 0]);
        let refused = [
            tensor(0),
            tensor(6),
            Tensor {
                element: 13,
                ..tensor(5)
            },
            Tensor {
                address: 0x7f00_0000_0018,
                ..tensor(5)
            },
            Tensor {
                address: 0,
                ..tensor(5)
            },
            Tensor {
                sizes: zeros,
                ..tensor(5)
            },
            Tensor {
                strides: list(&[256, 512, 8, 16]),
                ..tensor(5)
            },
            Tensor {
                strides: list(&[256, 512, 1 << 40, 16]),
                ..tensor(5)
            },
            Tensor {
                part: list(&[257, 1, 1, 1, 1]),
                ..tensor(5)
            },
            Tensor {
                steps: list(&[9, 1, 1, 1, 1]),
                ..tensor(5)
            },
            Tensor {
                sizes: In::from_raw(std::ptr::null()),
                ..tensor(5)
            },
        ];
        for (number, tensor) in refused.into_iter().enumerate() {
            assert_eq!(
                tensor.encode().err(),
                Some(Error::INVALID_VALUE),
                "{number}"
            );
        }
        assert!(
            Tensor {
                strides: In::from_raw(std::ptr::null()),
                ..tensor(1)
            }
            .encode()
            .is_ok()
        );
    }
}
