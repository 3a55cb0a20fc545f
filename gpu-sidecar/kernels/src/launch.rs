//! Decoding of launches: a kernel and its parameters from the buffer that is passed to the driver.

use std::fmt;

use crate::Kernel;

/// Scaling law: the speed of a kernel as a function of its share of the GPU's SMs, with speed 1 for all SMs. The
/// parameter is in millionths.
///
/// | number | law | parameter |
/// |---|---|---|
/// | 0 | linear | ignored |
/// | 1 | saturating | the share at which 0.98 of the full speed is reached |
/// | 2 | knee | the share above which more SMs do not increase the speed |
/// | 3 | Amdahl's | the serial part, with a duration independent of the number of SMs |
/// | 4 | power | the exponent |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Law {
    /// Speed proportional to the share.
    #[default]
    Linear,
    /// Speed that approaches its maximum exponentially.
    Saturating {
        /// Share at which 0.98 of the full speed is reached, 1 to 1,000,000 millionths.
        at_millionths: u32,
    },
    /// Speed proportional to the share up to the knee, and constant above it.
    Knee {
        /// Share at the knee, 1 to 1,000,000 millionths.
        at_millionths: u32,
    },
    /// Amdahl's law: a part of the work does not speed up with more SMs.
    Amdahl {
        /// Serial part of the duration with all SMs, at most 1,000,000 millionths.
        serial_millionths: u32,
    },
    /// Speed equal to a power of the share.
    Power {
        /// Exponent, at most 1,000,000 millionths.
        exponent_millionths: u32,
    },
}

impl Law {
    /// Returns the number and the parameter of the law, as passed to a launch.
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

    /// Returns the law with this number and parameter.
    ///
    /// # Errors
    /// Returns an error if no law has this number or if the parameter is out of its range.
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

/// The reason why a parameter buffer cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// The buffer is shorter than the kernel's parameters.
    Short {
        /// Kernel of the launch.
        kernel: Kernel,
        /// Size of the buffer, in bytes.
        bytes: usize,
    },
    /// No scaling law has this number.
    Law {
        /// Number of the unknown law.
        number: u32,
    },
    /// The parameter of a scaling law is out of range.
    Parameter {
        /// Number of the law.
        number: u32,
        /// Rejected value, in millionths.
        parameter: u32,
        /// Smallest allowed value, in millionths.
        least: u32,
    },
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Short { kernel, bytes } => write!(
                f,
                "{}: {bytes} bytes of parameters; required: {}",
                kernel.name(),
                kernel.parameter_bytes()
            ),
            Self::Law { number } => write!(f, "law = {number}: allowed: 0 to 4"),
            Self::Parameter {
                number,
                parameter,
                least,
            } => write!(
                f,
                "parameter_millionths = {parameter} of law {number}: allowed: {least} to 1000000"
            ),
        }
    }
}

impl std::error::Error for DecodeError {}

/// A memory range that a launch reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// First address of the range.
    pub address: u64,
    /// Length of the range in bytes, saturated at [`u64::MAX`].
    pub bytes: u64,
    /// Whether the range is written; otherwise it is only read.
    pub writes: bool,
}

/// Time of a kernel which keeps its SMs busy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Busy {
    /// Duration in nanoseconds, alone on the GPU and with as many SMs as the grid can use.
    pub ns: u64,
    /// Scaling law for fewer SMs.
    pub law: Law,
    /// Slowdown by each other process that runs at the same time, in millionths.
    pub interference_millionths: u32,
}

/// A kernel with its parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Launch {
    /// Keeps its SMs busy for a given time.
    Spin(Busy),
    /// Sets words to a value; see [`fill`](crate::effect::fill).
    Fill {
        /// Address of the words.
        out: u64,
        /// Number of words to set.
        words: u64,
        /// Value to which each word is set.
        value: u32,
    },
    /// Sums words; see [`sum`](crate::effect::sum).
    Sum {
        /// Address of the `u64` to which the sum is added.
        out: u64,
        /// Address of the words.
        input: u64,
        /// Number of words to read.
        words: u64,
    },
    /// Hashes words; see [`hash`](crate::effect::hash).
    Hash {
        /// Address of the `u64` to which the hash is added.
        out: u64,
        /// Address of the words.
        input: u64,
        /// Number of words to read.
        words: u64,
    },
    /// Hashes words; see [`hash`](crate::effect::hash). A layer of a model that reads its weights.
    Layer {
        /// Time for which it keeps its SMs busy.
        busy: Busy,
        /// Address of the `u64` to which the hash is added.
        out: u64,
        /// Address of the words.
        input: u64,
        /// Number of words to read.
        words: u64,
    },
    /// As [`Launch::Layer`], where the address of the words is in device memory: no parameter shows it.
    HiddenLayer {
        /// Time for which it keeps its SMs busy.
        busy: Busy,
        /// Address of the `u64` to which the hash is added.
        out: u64,
        /// Address of a table of addresses.
        table: u64,
        /// Place in the table of the address of the words.
        index: u64,
        /// Number of words to read.
        words: u64,
    },
    /// Hashes granules of memory; see [`granule_hash`](crate::effect::granule_hash).
    GranuleHash {
        /// Address of two `u64` for each granule, to which the hash is added.
        out: u64,
        /// Address of a table of the granules' addresses.
        table: u64,
        /// Number of granules.
        granules: u64,
        /// Number of 64-bit words in each granule.
        words: u64,
    },
    /// Adds two vectors; see [`add`](crate::effect::add).
    Add {
        /// Address of the sums.
        c: u64,
        /// Address of the first terms.
        a: u64,
        /// Address of the second terms.
        b: u64,
        /// Number of elements in each vector.
        n: u64,
    },
    /// Adds a scaled vector to another one; see [`saxpy`](crate::effect::saxpy).
    Saxpy {
        /// Address of the vector that is updated.
        y: u64,
        /// Address of the vector that is scaled.
        x: u64,
        /// Number of elements in each vector.
        n: u64,
        /// Factor for the elements of `x`.
        a: f32,
    },
    /// Multiplies two square matrices; see [`matmul`](crate::effect::matmul).
    Matmul {
        /// Address of the product.
        c: u64,
        /// Address of the left matrix.
        a: u64,
        /// Address of the right matrix.
        b: u64,
        /// Number of rows and columns of each matrix.
        n: u32,
    },
}

/// A parameter buffer with the kernel whose layout it has.
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

    fn busy(&self) -> Result<Busy, DecodeError> {
        Ok(Busy {
            ns: self.wide(0)?,
            law: Law::decode(self.narrow(1)?, self.narrow(2)?)?,
            interference_millionths: self.narrow(3)?,
        })
    }

    fn narrow(&self, number: usize) -> Result<u32, DecodeError> {
        self.bytes(number).map(u32::from_le_bytes)
    }
}

impl Launch {
    /// Decodes a parameter buffer. Bytes after the last parameter are ignored.
    ///
    /// # Errors
    /// Returns an error if the buffer is too short or if its scaling law is invalid.
    pub fn decode(kernel: Kernel, parameters: &[u8]) -> Result<Self, DecodeError> {
        let buffer = Buffer {
            kernel,
            bytes: parameters,
        };
        Ok(match kernel {
            Kernel::Spin => Self::Spin(buffer.busy()?),
            Kernel::Layer => Self::Layer {
                busy: buffer.busy()?,
                out: buffer.wide(4)?,
                input: buffer.wide(5)?,
                words: buffer.wide(6)?,
            },
            Kernel::HiddenLayer => Self::HiddenLayer {
                busy: buffer.busy()?,
                out: buffer.wide(4)?,
                table: buffer.wide(5)?,
                index: buffer.wide(6)?,
                words: buffer.wide(7)?,
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
            Kernel::GranuleHash => Self::GranuleHash {
                out: buffer.wide(0)?,
                table: buffer.wide(1)?,
                granules: buffer.wide(2)?,
                words: buffer.wide(3)?,
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

    /// Returns the kernel that is launched.
    #[must_use]
    pub const fn kernel(&self) -> Kernel {
        match self {
            Self::Spin(_) => Kernel::Spin,
            Self::Layer { .. } => Kernel::Layer,
            Self::HiddenLayer { .. } => Kernel::HiddenLayer,
            Self::Fill { .. } => Kernel::Fill,
            Self::Sum { .. } => Kernel::Sum,
            Self::Hash { .. } => Kernel::Hash,
            Self::GranuleHash { .. } => Kernel::GranuleHash,
            Self::Add { .. } => Kernel::Add,
            Self::Saxpy { .. } => Kernel::Saxpy,
            Self::Matmul { .. } => Kernel::Matmul,
        }
    }

    /// Encodes the parameter buffer, which is [`Kernel::parameter_bytes`] long.
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
            Self::Spin(busy) => put(&[
                &busy.ns.to_le_bytes(),
                &busy.law.encode().0.to_le_bytes(),
                &busy.law.encode().1.to_le_bytes(),
                &busy.interference_millionths.to_le_bytes(),
            ]),
            Self::Layer {
                busy,
                out,
                input,
                words,
            } => put(&[
                &busy.ns.to_le_bytes(),
                &busy.law.encode().0.to_le_bytes(),
                &busy.law.encode().1.to_le_bytes(),
                &busy.interference_millionths.to_le_bytes(),
                &out.to_le_bytes(),
                &input.to_le_bytes(),
                &words.to_le_bytes(),
            ]),
            Self::HiddenLayer {
                busy,
                out,
                table,
                index,
                words,
            } => put(&[
                &busy.ns.to_le_bytes(),
                &busy.law.encode().0.to_le_bytes(),
                &busy.law.encode().1.to_le_bytes(),
                &busy.interference_millionths.to_le_bytes(),
                &out.to_le_bytes(),
                &table.to_le_bytes(),
                &index.to_le_bytes(),
                &words.to_le_bytes(),
            ]),
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
            Self::GranuleHash {
                out,
                table,
                granules,
                words,
            } => put(&[
                &out.to_le_bytes(),
                &table.to_le_bytes(),
                &granules.to_le_bytes(),
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

    /// Returns how long the launch keeps its SMs busy; `None` if that follows from what it does.
    #[must_use]
    pub const fn busy(&self) -> Option<&Busy> {
        match self {
            Self::Spin(busy) | Self::Layer { busy, .. } | Self::HiddenLayer { busy, .. } => {
                Some(busy)
            }
            _ => None,
        }
    }

    /// Returns the size of the memory that the launch reads beyond its [`Self::accesses`], by addresses in device memory, in bytes.
    #[must_use]
    pub const fn hidden_bytes(&self) -> u64 {
        match *self {
            Self::HiddenLayer { words, .. } => words.saturating_mul(4),
            Self::GranuleHash {
                granules, words, ..
            } => granules.saturating_mul(words).saturating_mul(8),
            _ => 0,
        }
    }

    /// Returns the memory ranges that the launch reads and writes, at most three. Empty ranges are omitted. Of a
    /// [`Launch::HiddenLayer`] and a [`Launch::GranuleHash`] only the entries of the table are known.
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
            Self::Spin(_) => [None, None, None],
            Self::HiddenLayer {
                out,
                table,
                index,
                words,
                ..
            } => {
                let entry = table.wrapping_add(index.wrapping_mul(8));
                let written = if words == 0 { 0 } else { 8 };
                [write(out, written), read(entry, 8), None]
            }
            Self::GranuleHash {
                out,
                table,
                granules,
                ..
            } => [
                write(out, granules.saturating_mul(16)),
                read(table, granules.saturating_mul(8)),
                None,
            ],
            Self::Fill { out, words, .. } => [write(out, words.saturating_mul(4)), None, None],
            Self::Sum { out, input, words }
            | Self::Hash { out, input, words }
            | Self::Layer {
                out, input, words, ..
            } => {
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

    const BUSY: Busy = Busy {
        ns: 250_000,
        law: Law::Saturating {
            at_millionths: 240_000,
        },
        interference_millionths: 93_000,
    };

    fn launches() -> [Launch; 10] {
        [
            Launch::Spin(BUSY),
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
            Launch::Layer {
                busy: BUSY,
                out: 8,
                input: 16,
                words: 3,
            },
            Launch::HiddenLayer {
                busy: BUSY,
                out: 8,
                table: 16,
                index: 2,
                words: 3,
            },
            Launch::GranuleHash {
                out: 16,
                table: 1_024,
                granules: 3,
                words: 512,
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
    fn encoded_launches_decode_to_themselves() {
        for launch in launches() {
            let mut buffer = launch.encode();
            assert_eq!(Launch::decode(launch.kernel(), &buffer), Ok(launch));
            // The buffer that the driver gets may be longer.
            buffer.push(7);
            assert_eq!(Launch::decode(launch.kernel(), &buffer), Ok(launch));
        }
    }

    #[test]
    fn refuses_every_shorter_buffer_with_the_required_size() {
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
            "weir_fill: 19 bytes of parameters; required: 20"
        );
    }

    #[test]
    fn refuses_unknown_laws_and_parameters_out_of_range() {
        for (number, parameter, why) in [
            (5, 0, "law = 5: allowed: 0 to 4"),
            (
                1,
                0,
                "parameter_millionths = 0 of law 1: allowed: 1 to 1000000",
            ),
            (
                4,
                1_000_001,
                "parameter_millionths = 1000001 of law 4: allowed: 0 to 1000000",
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
    fn accesses_cover_all_memory_that_is_touched() {
        let of = |launch: Launch| {
            launch
                .accesses()
                .map(|access| (access.address, access.bytes, access.writes))
                .collect::<Vec<_>>()
        };
        let [
            spin,
            fill,
            sum,
            empty,
            layer,
            hidden,
            granules,
            add,
            saxpy,
            matmul,
        ] = launches();
        assert_eq!(of(spin), []);
        assert_eq!(of(fill), [(0x7f00_0000_1000, 1 << 35, true)]);
        assert_eq!(of(sum), [(1, 8, true), (2, 12, false)]);
        assert_eq!(of(empty), []);
        assert_eq!(of(layer), [(8, 8, true), (16, 12, false)]);
        // The block itself shows in no parameter.
        assert_eq!(of(hidden), [(8, 8, true), (32, 8, false)]);
        assert_eq!(hidden.hidden_bytes(), 12);
        assert_eq!(of(granules), [(16, 48, true), (1_024, 24, false)]);
        assert_eq!(granules.hidden_bytes(), 3 * 4_096);
        assert_eq!(layer.hidden_bytes(), 0);
        assert_eq!(of(add), [(1, 16, true), (2, 16, false), (3, 16, false)]);
        assert_eq!(of(saxpy), [(1, 12, true), (2, 12, false)]);
        // Almost 2^66 bytes exceed the address space.
        assert!(of(matmul).iter().all(|&(_, bytes, _)| bytes == u64::MAX));
    }
}
