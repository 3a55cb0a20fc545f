//! A launch taken apart: a kernel and its parameters from the buffer that the driver is given.

use std::fmt;

use crate::Kernel;

/// How a kernel's speed follows from its share of a GPU's SMs; it has speed 1 with all of them. The parameter is in
/// millionths.
///
/// | number | law | parameter |
/// |---|---|---|
/// | 0 | linear | not looked at |
/// | 1 | saturating | the share at which 0.98 of the speed is reached |
/// | 2 | knee | the share from which on more SMs bring nothing |
/// | 3 | Amdahl's | the part that takes as long however many SMs there are |
/// | 4 | power | the exponent |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Law {
    /// Twice the SMs, twice the speed.
    #[default]
    Linear,
    /// 0.98 of the speed is reached at this share, exponentially.
    Saturating {
        /// That share, above 0, at most 1,000,000.
        at_millionths: u32,
    },
    /// Proportional up to this share, then constant.
    Knee {
        /// That share, above 0, at most 1,000,000.
        at_millionths: u32,
    },
    /// A part of the work takes as long however many SMs there are.
    Amdahl {
        /// That part with all SMs, at most 1,000,000.
        serial_millionths: u32,
    },
    /// The share to a power.
    Power {
        /// The exponent, at most 1,000,000.
        exponent_millionths: u32,
    },
}

impl Law {
    /// As a launch says it: number and parameter.
    #[must_use]
    pub const fn encode(self) -> (u32, u32) {
        match self {
            Self::Linear => (0, 0),
            Self::Saturating { at_millionths } => (1, at_millionths),
            Self::Knee { at_millionths } => (2, at_millionths),
            Self::Amdahl { serial_millionths } => (3, serial_millionths),
            Self::Power {
                exponent_millionths,
            } => (4, exponent_millionths),
        }
    }

    /// From its number and parameter.
    ///
    /// # Errors
    /// There is no law of this number, or the parameter is not one of its.
    pub const fn decode(number: u32, parameter: u32) -> Result<Self, DecodeError> {
        let law = match number {
            0 => return Ok(Self::Linear),
            1 => Self::Saturating {
                at_millionths: parameter,
            },
            2 => Self::Knee {
                at_millionths: parameter,
            },
            3 => Self::Amdahl {
                serial_millionths: parameter,
            },
            4 => Self::Power {
                exponent_millionths: parameter,
            },
            _ => return Err(DecodeError::Law { number }),
        };
        let least = match law {
            Self::Saturating { .. } | Self::Knee { .. } => 1,
            Self::Linear | Self::Amdahl { .. } | Self::Power { .. } => 0,
        };
        if parameter < least || parameter > 1_000_000 {
            return Err(DecodeError::Parameter {
                number,
                parameter,
                least,
            });
        }
        Ok(law)
    }
}

/// A parameter buffer cannot be one of the kernel's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// It is too short.
    Short {
        /// The kernel.
        kernel: Kernel,
        /// Bytes there are.
        bytes: usize,
    },
    /// There is no such law.
    Law {
        /// Its number.
        number: u32,
    },
    /// A law's parameter is out of range.
    Parameter {
        /// The law's number.
        number: u32,
        /// The parameter.
        parameter: u32,
        /// The least that is allowed.
        least: u32,
    },
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Short { kernel, bytes } => write!(
                f,
                "{}: {bytes} bytes of parameters; needed: {}",
                kernel.name(),
                kernel.parameter_bytes()
            ),
            Self::Law { number } => write!(f, "weir_spin: law = {number}: allowed: 0 to 4"),
            Self::Parameter {
                number,
                parameter,
                least,
            } => write!(
                f,
                "weir_spin: parameter_millionths = {parameter} of law {number}: allowed: {least} to 1000000"
            ),
        }
    }
}

impl std::error::Error for DecodeError {}

/// A stretch of memory that a launch reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Where it begins.
    pub address: u64,
    /// How long it is; more than there are addresses counts as [`u64::MAX`].
    pub bytes: u64,
    /// Whether it is written.
    pub writes: bool,
}

/// A kernel with its parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Launch {
    /// Keeps its SMs busy.
    Spin {
        /// For how long alone and with as many SMs as its grid can use, in ns.
        ns: u64,
        /// How its speed follows from fewer.
        law: Law,
        /// By how much each other process that runs beside it slows it down, in millionths.
        interference_millionths: u32,
    },
    /// See [`fill`](crate::effect::fill).
    Fill {
        /// Address of the words.
        out: u64,
        /// How many.
        words: u64,
        /// What each becomes.
        value: u32,
    },
    /// See [`sum`](crate::effect::sum).
    Sum {
        /// Address of the `u64` that it is added to.
        out: u64,
        /// Address of the words.
        input: u64,
        /// How many.
        words: u64,
    },
    /// See [`hash`](crate::effect::hash).
    Hash {
        /// Address of the `u64` that it is added to.
        out: u64,
        /// Address of the words.
        input: u64,
        /// How many.
        words: u64,
    },
    /// See [`add`](crate::effect::add).
    Add {
        /// Address of the sums.
        c: u64,
        /// Address of the first terms.
        a: u64,
        /// Address of the second terms.
        b: u64,
        /// How many elements.
        n: u64,
    },
    /// See [`saxpy`](crate::effect::saxpy).
    Saxpy {
        /// Address of what is added to.
        y: u64,
        /// Address of what is added.
        x: u64,
        /// How many elements.
        n: u64,
        /// By what `x` is multiplied.
        a: f32,
    },
    /// See [`matmul`](crate::effect::matmul).
    Matmul {
        /// Address of the product.
        c: u64,
        /// Address of the left matrix.
        a: u64,
        /// Address of the right one.
        b: u64,
        /// Rows and columns.
        n: u32,
    },
}

/// A parameter buffer of at least the kernel's length.
struct Buffer<'a> {
    kernel: Kernel,
    bytes: &'a [u8],
}

impl Buffer<'_> {
    fn bytes<const N: usize>(&self, number: usize) -> Result<[u8; N], DecodeError> {
        let parameters = self.kernel.parameters();
        parameters
            .get(number)
            .and_then(|parameter| self.bytes.get(parameter.offset..))
            .and_then(|rest| rest.first_chunk())
            .copied()
            .ok_or(DecodeError::Short {
                kernel: self.kernel,
                bytes: self.bytes.len(),
            })
    }

    fn wide(&self, number: usize) -> Result<u64, DecodeError> {
        self.bytes(number).map(u64::from_le_bytes)
    }

    fn narrow(&self, number: usize) -> Result<u32, DecodeError> {
        self.bytes(number).map(u32::from_le_bytes)
    }
}

impl Launch {
    /// Takes a parameter buffer apart. Bytes behind the last parameter are not looked at.
    ///
    /// # Errors
    /// The buffer is too short, or a law is not known.
    pub fn decode(kernel: Kernel, parameters: &[u8]) -> Result<Self, DecodeError> {
        let buffer = Buffer {
            kernel,
            bytes: parameters,
        };
        Ok(match kernel {
            Kernel::Spin => Self::Spin {
                ns: buffer.wide(0)?,
                law: Law::decode(buffer.narrow(1)?, buffer.narrow(2)?)?,
                interference_millionths: buffer.narrow(3)?,
            },
            Kernel::Fill => Self::Fill {
                out: buffer.wide(0)?,
                words: buffer.wide(1)?,
                value: buffer.narrow(2)?,
            },
            Kernel::Sum => Self::Sum {
                out: buffer.wide(0)?,
                input: buffer.wide(1)?,
                words: buffer.wide(2)?,
            },
            Kernel::Hash => Self::Hash {
                out: buffer.wide(0)?,
                input: buffer.wide(1)?,
                words: buffer.wide(2)?,
            },
            Kernel::Add => Self::Add {
                c: buffer.wide(0)?,
                a: buffer.wide(1)?,
                b: buffer.wide(2)?,
                n: buffer.wide(3)?,
            },
            Kernel::Saxpy => Self::Saxpy {
                y: buffer.wide(0)?,
                x: buffer.wide(1)?,
                n: buffer.wide(2)?,
                a: f32::from_bits(buffer.narrow(3)?),
            },
            Kernel::Matmul => Self::Matmul {
                c: buffer.wide(0)?,
                a: buffer.wide(1)?,
                b: buffer.wide(2)?,
                n: buffer.narrow(3)?,
            },
        })
    }

    /// The kernel.
    #[must_use]
    pub const fn kernel(&self) -> Kernel {
        match self {
            Self::Spin { .. } => Kernel::Spin,
            Self::Fill { .. } => Kernel::Fill,
            Self::Sum { .. } => Kernel::Sum,
            Self::Hash { .. } => Kernel::Hash,
            Self::Add { .. } => Kernel::Add,
            Self::Saxpy { .. } => Kernel::Saxpy,
            Self::Matmul { .. } => Kernel::Matmul,
        }
    }

    /// The parameter buffer, [`Kernel::parameter_bytes`] long.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let kernel = self.kernel();
        let mut buffer = vec![0; kernel.parameter_bytes()];
        let mut put = |values: &[&[u8]]| {
            for (parameter, value) in kernel.parameters().iter().zip(values) {
                buffer[parameter.offset..][..parameter.size].copy_from_slice(value);
            }
        };
        match *self {
            Self::Spin {
                ns,
                law,
                interference_millionths,
            } => {
                let (number, parameter) = law.encode();
                put(&[
                    &ns.to_le_bytes(),
                    &number.to_le_bytes(),
                    &parameter.to_le_bytes(),
                    &interference_millionths.to_le_bytes(),
                ]);
            }
            Self::Fill { out, words, value } => put(&[
                &out.to_le_bytes(),
                &words.to_le_bytes(),
                &value.to_le_bytes(),
            ]),
            Self::Sum { out, input, words } | Self::Hash { out, input, words } => put(&[
                &out.to_le_bytes(),
                &input.to_le_bytes(),
                &words.to_le_bytes(),
            ]),
            Self::Add { c, a, b, n } => put(&[
                &c.to_le_bytes(),
                &a.to_le_bytes(),
                &b.to_le_bytes(),
                &n.to_le_bytes(),
            ]),
            Self::Saxpy { y, x, n, a } => put(&[
                &y.to_le_bytes(),
                &x.to_le_bytes(),
                &n.to_le_bytes(),
                &a.to_le_bytes(),
            ]),
            Self::Matmul { c, a, b, n } => put(&[
                &c.to_le_bytes(),
                &a.to_le_bytes(),
                &b.to_le_bytes(),
                &n.to_le_bytes(),
            ]),
        }
        buffer
    }

    /// The memory that it reads and writes, up to three stretches. Where nothing is read or written there is none.
    pub fn accesses(&self) -> impl Iterator<Item = Access> {
        let read = |address, bytes| {
            Some(Access {
                address,
                bytes,
                writes: false,
            })
        };
        let write = |address, bytes| {
            Some(Access {
                address,
                bytes,
                writes: true,
            })
        };
        let accesses = match *self {
            Self::Spin { .. } => [None, None, None],
            Self::Fill { out, words, .. } => [write(out, words.saturating_mul(4)), None, None],
            Self::Sum { out, input, words } | Self::Hash { out, input, words } => {
                let written = if words == 0 { 0 } else { 8 };
                [
                    write(out, written),
                    read(input, words.saturating_mul(4)),
                    None,
                ]
            }
            Self::Add { c, a, b, n } => {
                let bytes = n.saturating_mul(4);
                [write(c, bytes), read(a, bytes), read(b, bytes)]
            }
            Self::Saxpy { y, x, n, .. } => {
                let bytes = n.saturating_mul(4);
                [write(y, bytes), read(x, bytes), None]
            }
            Self::Matmul { c, a, b, n } => {
                let elements = u64::from(n) * u64::from(n);
                let bytes = elements.saturating_mul(4);
                [write(c, bytes), read(a, bytes), read(b, bytes)]
            }
        };
        accesses
            .into_iter()
            .flatten()
            .filter(|access| access.bytes > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launches() -> [Launch; 7] {
        [
            Launch::Spin {
                ns: 250_000,
                law: Law::Saturating {
                    at_millionths: 240_000,
                },
                interference_millionths: 93_000,
            },
            Launch::Fill {
                out: 0x7f00_0000_1000,
                words: 1 << 33,
                value: 0xdead_beef,
            },
            Launch::Sum {
                out: 1,
                input: 2,
                words: 3,
            },
            Launch::Hash {
                out: 8,
                input: 16,
                words: 0,
            },
            Launch::Add {
                c: 1,
                a: 2,
                b: 3,
                n: 4,
            },
            Launch::Saxpy {
                y: 1,
                x: 2,
                n: 3,
                a: -1.5,
            },
            Launch::Matmul {
                c: 1,
                a: 2,
                b: 3,
                n: u32::MAX,
            },
        ]
    }

    #[test]
    fn what_is_encoded_is_decoded() {
        for launch in launches() {
            let mut buffer = launch.encode();
            assert_eq!(Launch::decode(launch.kernel(), &buffer), Ok(launch));
            // The driver may be given more.
            buffer.push(7);
            assert_eq!(Launch::decode(launch.kernel(), &buffer), Ok(launch));
        }
    }

    #[test]
    fn every_shorter_buffer_is_an_error_that_says_what_is_needed() {
        for launch in launches() {
            let (kernel, buffer) = (launch.kernel(), launch.encode());
            for bytes in 0..buffer.len() {
                let error = Launch::decode(kernel, &buffer[..bytes]).unwrap_err();
                assert_eq!(error, DecodeError::Short { kernel, bytes });
            }
        }
        let error = Launch::decode(Kernel::Fill, &[0; 19]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "weir_fill: 19 bytes of parameters; needed: 20"
        );
    }

    #[test]
    fn laws_that_are_none_are_named() {
        for (number, parameter, why) in [
            (5, 0, "weir_spin: law = 5: allowed: 0 to 4"),
            (
                1,
                0,
                "weir_spin: parameter_millionths = 0 of law 1: allowed: 1 to 1000000",
            ),
            (
                4,
                1_000_001,
                "weir_spin: parameter_millionths = 1000001 of law 4: allowed: 0 to 1000000",
            ),
        ] {
            assert_eq!(Law::decode(number, parameter).unwrap_err().to_string(), why);
        }
        for number in 0..=4 {
            let law = Law::decode(number, 250_000).unwrap();
            assert_eq!(law.encode().0, number);
        }
    }

    #[test]
    fn accesses_are_all_that_is_touched() {
        let of = |launch: Launch| {
            launch
                .accesses()
                .map(|access| (access.address, access.bytes, access.writes))
                .collect::<Vec<_>>()
        };
        let [spin, fill, sum, empty, add, saxpy, matmul] = launches();
        assert_eq!(of(spin), []);
        assert_eq!(of(fill), [(0x7f00_0000_1000, 1 << 35, true)]);
        assert_eq!(of(sum), [(1, 8, true), (2, 12, false)]);
        assert_eq!(of(empty), []);
        assert_eq!(of(add), [(1, 16, true), (2, 16, false), (3, 16, false)]);
        assert_eq!(of(saxpy), [(1, 12, true), (2, 12, false)]);
        // Almost 2^66 bytes: more than there are addresses.
        assert!(of(matmul).iter().all(|&(_, bytes, _)| bytes == u64::MAX));
    }
}
