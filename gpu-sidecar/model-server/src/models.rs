//! Models by name: bytes of weights, kernels, and the law of their speed by share of SMs.
//!
//! | model | time of a request | weights | source |
//! |---|---|---|---|
//! | seven CNNs and Bert-qa | Torpor, Table 4, column "remoting": resident and without a framework's own cost | fp32, public parameter counts | Torpor, ATC'25 |
//! | ResNet, RNNT, GNMT | 1 / throughput of one pod that has the GPU alone: 71.37, 12.51, 28.85 requests/s (§5.3) | see below | FaST-GShare, ICPP'23 |
//! | BERT | 1 / 48 requests/s, read from the authors' repository, not printed | BERT-large | FaST-GShare, ICPP'23 |
//!
//! Assumptions for unpublished values:
//!
//! - **Number of kernels.** One per operator of the public architecture without fusion (convolution, normalisation, activation,
//!   addition, concatenation, pooling, matrix product), all equally long. Recurrent models: one per step, layer and direction
//!   of a typical input, where cuDNN runs a layer as one kernel: RNNT 240, GNMT 400.
//! - **Demand for SMs.** Every kernel occupies all SMs of the GPU; the law alone contains the cost of fewer SMs.
//! - **Law.** ResNet saturates at 24 % of the SMs (FaST-GShare §5.2); RNNT 24 %, GNMT 80 % and BERT's knee at 33 % are assumed
//!   there. Torpor's models were never measured with fewer SMs: the CNNs use ResNet's law, Bert-qa BERT's.
//! - **Interference** (slowdown of a kernel by each concurrent process): fitted to the joint throughput of eight pods of 12 %,
//!   0.093, 0.141 and 0.194; BERT 0.1; Torpor's models as their laws.
//! - **Weights** of RNNT (45.3 M parameters) and GNMT (160 M): from the public architectures. EfficientNet is B0, by its
//!   parameter count.
//! - **Input and output.** CNNs: one picture of 3 × 224 × 224 (Inception: 299 × 299) fp32 in, 1,000 scores out. Language: 384
//!   tokens of three 8-byte ids in, two scores a token out. RNNT: 15 s of 80 features each 10 ms. GNMT: 128 ids.

use kernels::Law;

/// Consecutive kernels of equal length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// Number of kernels in the group.
    pub count: u32,
    /// Time of each kernel running alone, in ns.
    pub ns: u64,
}

/// Sizes, kernels and performance of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    /// Name of the model, which also seeds its weights.
    pub name: String,
    /// Size of the weights, in bytes.
    pub weights_bytes: u64,
    /// Size of a request's input copied to the device, in bytes.
    pub input_bytes: u64,
    /// Size of an answer copied back, in bytes.
    pub output_bytes: u64,
    /// Kernels of a request, in order.
    pub kernels: Vec<Group>,
    /// Law of the model's kernels: their speed by share of SMs.
    pub law: Law,
    /// Slowdown of the model's kernels by each concurrent process, in millionths.
    pub interference_millionths: u32,
}

/// A row of the table: name, thousands of parameters, kernels, µs per request, kind of input, law and interference.
type Row = (&'static str, u64, u32, u64, Io, Behaviour);

#[derive(Clone, Copy)]
enum Io {
    Picture224,
    Picture299,
    Tokens384,
    Speech,
    Sentence,
}

#[derive(Clone, Copy)]
enum Behaviour {
    ResNet,
    Rnnt,
    Gnmt,
    Bert,
}

const MODELS: [Row; 12] = [
    (
        "densenet-169",
        14_149,
        594,
        25_000,
        Io::Picture224,
        Behaviour::ResNet,
    ),
    (
        "densenet-201",
        20_014,
        706,
        28_000,
        Io::Picture224,
        Behaviour::ResNet,
    ),
    (
        "inception-v3",
        27_161,
        312,
        14_000,
        Io::Picture299,
        Behaviour::ResNet,
    ),
    (
        "efficientnet",
        5_289,
        254,
        12_000,
        Io::Picture224,
        Behaviour::ResNet,
    ),
    (
        "resnet-50",
        25_557,
        174,
        9_000,
        Io::Picture224,
        Behaviour::ResNet,
    ),
    (
        "resnet-101",
        44_549,
        344,
        14_000,
        Io::Picture224,
        Behaviour::ResNet,
    ),
    (
        "resnet-152",
        60_193,
        514,
        17_000,
        Io::Picture224,
        Behaviour::ResNet,
    ),
    (
        "bert-qa",
        335_000,
        391,
        43_000,
        Io::Tokens384,
        Behaviour::Bert,
    ),
    (
        "resnet",
        25_557,
        174,
        14_011,
        Io::Picture224,
        Behaviour::ResNet,
    ),
    ("rnnt", 45_300, 240, 79_936, Io::Speech, Behaviour::Rnnt),
    ("gnmt", 160_000, 400, 34_662, Io::Sentence, Behaviour::Gnmt),
    ("bert", 335_000, 391, 20_833, Io::Tokens384, Behaviour::Bert),
];

impl Io {
    const fn bytes(self) -> (u64, u64) {
        match self {
            Self::Picture224 => (3 * 224 * 224 * 4, 4_000),
            Self::Picture299 => (3 * 299 * 299 * 4, 4_000),
            Self::Tokens384 => (384 * 3 * 8, 384 * 2 * 4),
            Self::Speech => (1_500 * 80 * 4, 2_048),
            Self::Sentence => (128 * 8, 128 * 8),
        }
    }
}

impl Behaviour {
    const fn law(self) -> (Law, u32) {
        match self {
            Self::ResNet => (
                Law::Saturating {
                    at_millionths: 240_000,
                },
                93_000,
            ),
            Self::Rnnt => (
                Law::Saturating {
                    at_millionths: 240_000,
                },
                141_000,
            ),
            Self::Gnmt => (
                Law::Saturating {
                    at_millionths: 800_000,
                },
                194_000,
            ),
            Self::Bert => (
                Law::Knee {
                    at_millionths: 330_000,
                },
                100_000,
            ),
        }
    }
}

impl Model {
    /// Returns the model of this name, ignoring case; `None` if there is none.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let row = MODELS.iter().find(|row| row.0.eq_ignore_ascii_case(name))?;
        let &(name, thousands, count, micros, io, behaviour) = row;
        let (input_bytes, output_bytes) = io.bytes();
        let (law, interference_millionths) = behaviour.law();
        Some(Self {
            name: name.to_owned(),
            weights_bytes: thousands * 4_000,
            input_bytes,
            output_bytes,
            kernels: evenly(micros * 1_000, count),
            law,
            interference_millionths,
        })
    }

    /// Returns a model without weights and kernels: a request takes the time of the cost variables.
    #[must_use]
    pub fn generic() -> Self {
        Self {
            name: "generic".to_owned(),
            weights_bytes: 0,
            input_bytes: 4_096,
            output_bytes: 4_096,
            kernels: Vec::new(),
            law: Law::Linear,
            interference_millionths: 0,
        }
    }

    /// Returns the names of all models.
    pub fn names() -> impl Iterator<Item = &'static str> {
        MODELS.iter().map(|row| row.0)
    }

    /// Returns the seed from which the model's weights are generated.
    #[must_use]
    pub const fn seed(&self) -> u64 {
        kernels::hash(self.name.as_bytes())
    }

    /// Returns the total time of a request's kernels running alone, in ns.
    #[must_use]
    pub fn kernels_ns(&self) -> u64 {
        let each = self.kernels.iter();
        each.map(|group| group.ns.saturating_mul(u64::from(group.count)))
            .fold(0, u64::saturating_add)
    }

    /// Returns the number of kernels of a request.
    #[must_use]
    pub fn kernel_count(&self) -> u64 {
        self.kernels
            .iter()
            .map(|group| u64::from(group.count))
            .sum()
    }

    /// Returns the words of a request's input, with its size divided by `scale`; at least one.
    #[must_use]
    pub const fn input_words(&self, scale: u64) -> u64 {
        words(self.input_bytes, scale)
    }

    /// Returns the words of an answer, with its size divided by `scale`; at least one.
    #[must_use]
    pub const fn output_words(&self, scale: u64) -> u64 {
        words(self.output_bytes, scale)
    }
}

const fn words(bytes: u64, scale: u64) -> u64 {
    let scale = if scale == 0 { 1 } else { scale };
    let words = (bytes / scale).div_ceil(4);
    if words == 0 { 1 } else { words }
}

/// Returns `count` kernels of `total` ns together; the last one gets the remainder.
fn evenly(total: u64, count: u32) -> Vec<Group> {
    let count = count.max(1);
    let ns = total / u64::from(count);
    let last = Group {
        count: 1,
        ns: ns + total % u64::from(count),
    };
    if count == 1 {
        return vec![last];
    }
    let first = Group {
        count: count - 1,
        ns,
    };
    vec![first, last]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_model_has_the_published_time() {
        for (name, ms, weights) in [
            ("DenseNet-169", 25.0, 56_596_000),
            ("resnet-50", 9.0, 102_228_000),
            ("resnet-152", 17.0, 240_772_000),
            ("Bert-qa", 43.0, 1_340_000_000),
            ("resnet", 1_000.0 / 71.37, 102_228_000),
            ("rnnt", 1_000.0 / 12.51, 181_200_000),
            ("gnmt", 1_000.0 / 28.85, 640_000_000),
            ("bert", 1_000.0 / 48.0, 1_340_000_000),
        ] {
            let model = Model::named(name).unwrap();
            #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
            let own = model.kernels_ns() as f64 / 1e6;
            assert!((own - ms).abs() < 0.001, "{name}: {own}");
            assert_eq!(model.weights_bytes, weights, "{name}");
        }
        assert_eq!(Model::named("alexnet"), None);
        assert_eq!(Model::names().count(), 12);
    }

    #[test]
    fn kernels_have_plausible_number_and_length() {
        for name in Model::names() {
            let model = Model::named(name).unwrap();
            let micros = model.kernels_ns() / model.kernel_count() / 1_000;
            // Inference kernels of these models take tens to hundreds of µs.
            assert!((25..=350).contains(&micros), "{name}: {micros}");
            let (number, parameter) = model.law.encode();
            assert_eq!(Law::decode(number, parameter), Ok(model.law), "{name}");
        }
        assert_eq!(
            evenly(10, 3),
            [Group { count: 2, ns: 3 }, Group { count: 1, ns: 4 }]
        );
        assert_eq!(evenly(10, 1), [Group { count: 1, ns: 10 }]);
    }

    #[test]
    fn sizes_of_input_and_answer_are_whole_words() {
        let model = Model::named("resnet-50").unwrap();
        assert_eq!(
            (model.input_words(1), model.output_words(1)),
            (150_528, 1_000)
        );
        assert_eq!((model.input_words(64), model.output_words(64)), (2_352, 16));
        assert_eq!(model.output_words(1 << 40), 1);
    }
}
