//! Random numbers: one counter-based generator, divided into independent streams (workloads §1).
//!
//! A stream belongs to one purpose of one function in one experiment. Its key is the base seed, its number the
//! FNV-1a hash (64 bits) of `"{experiment}/{purpose}/{function index}"`, its generator ChaCha8. Adding a
//! function, or a policy that draws more often, therefore changes no other stream: two policies run with the same arrivals
//! and the same noise (common random numbers).
//!
//! Every draw is bit for bit equal on every machine: integers from ChaCha8, then additions, multiplications,
//! divisions and square roots, whose rounding IEEE 754 defines, and `ln`, `exp` and `pow` of the `libm` crate.

mod chacha;

/// Purpose of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// Mean request rate of a function.
    Rate,
    /// Change of a function's rate over time.
    Shape,
    /// Arrival times of a function's requests.
    Arrival,
    /// Branches taken by requests of an application.
    Branch,
    /// Deviations of executions, transfers and starts from their means.
    Noise,
    /// Service times of requests, where a trace only gives their distribution.
    Service,
}

impl Purpose {
    /// Returns the purpose as it is spelled in a stream's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rate => "rate",
            Self::Shape => "shape",
            Self::Arrival => "arrival",
            Self::Branch => "branch",
            Self::Noise => "noise",
            Self::Service => "service",
        }
    }
}

/// Source of all streams of one experiment with one seed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Streams {
    experiment: String,
    seed: u64,
}

impl Streams {
    /// Creates the source of an experiment's streams.
    #[must_use]
    pub fn new(experiment: &str, seed: u64) -> Self {
        Self {
            experiment: experiment.to_owned(),
            seed,
        }
    }

    /// Returns the base seed.
    #[must_use]
    pub const fn seed(&self) -> u64 {
        self.seed
    }

    /// Returns a stream at its beginning. The same purpose and function always yield the same numbers.
    #[must_use]
    pub fn stream(&self, purpose: Purpose, function: u32) -> Stream {
        let name = format!("{}/{}/{function}", self.experiment, purpose.name());
        Stream {
            seed: self.seed,
            number: fnv1a(name.as_bytes()),
            drawn: 0,
            block: [0; 8],
        }
    }
}

const fn fnv1a(bytes: &[u8]) -> u64 {
    let mut hash = 0xCBF2_9CE4_8422_2325_u64;
    let mut at = 0;
    while at < bytes.len() {
        hash = (hash ^ bytes[at] as u64).wrapping_mul(0x0100_0000_01B3);
        at += 1;
    }
    hash
}

/// Sequence of random numbers. See the [module](self).
///
/// A stream buffers one block of its generator and is 88 bytes long. There are several streams for each function, so their size
/// determines the memory of runs with many functions.
#[derive(Clone, Debug)]
pub struct Stream {
    seed: u64,
    number: u64,
    drawn: u64,
    /// Current block of the generator; the next number is at `drawn` mod 8.
    block: [u64; 8],
}

impl Stream {
    /// Returns 64 random bits.
    pub fn bits(&mut self) -> u64 {
        let at = self.drawn % 8;
        if at == 0 {
            self.block = chacha::block(self.seed, self.drawn / 8, self.number);
        }
        self.drawn += 1;
        self.block[at as usize]
    }

    /// Returns a number uniform in (0, 1) without the ends: the middle of one of 2⁵² equal parts.
    #[expect(clippy::cast_precision_loss, reason = "52 bits fit a double")]
    pub fn unit(&mut self) -> f64 {
        ((self.bits() >> 12) as f64 + 0.5) / (1_u64 << 52) as f64
    }

    /// Returns a number uniform in (`low`, `high`).
    pub fn uniform(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    /// Returns a standard normal number, from one uniform number.
    pub fn normal(&mut self) -> f64 {
        normal_quantile(self.unit())
    }

    /// Returns an exponential number with mean 1.
    pub fn exponential(&mut self) -> f64 {
        -libm::log(self.unit())
    }

    /// Returns `exp(mu + sigma · Z)` with Z standard normal.
    pub fn log_normal(&mut self, mu: f64, sigma: f64) -> f64 {
        libm::exp(mu + sigma * self.normal())
    }

    /// Returns a Gamma number with this shape, which must be above zero, and scale 1, so its mean is the shape (Marsaglia and
    /// Tsang 2000).
    pub fn gamma(&mut self, shape: f64) -> f64 {
        if shape < 1.0 {
            let boost = libm::pow(self.unit(), 1.0 / shape);
            return self.gamma(shape + 1.0) * boost;
        }
        let d = shape - 1.0 / 3.0;
        let c = 1.0 / (9.0 * d).sqrt();
        loop {
            let x = self.normal();
            let root = 1.0 + c * x;
            if root <= 0.0 {
                continue;
            }
            let v = root * root * root;
            if libm::log(self.unit()) < 0.5 * x * x + d - d * v + d * libm::log(v) {
                return d * v;
            }
        }
    }
}

/// Returns the standard normal's quantile at `p` in (0, 1), with a relative error of about 1e-16 (Wichura 1988, AS 241).
#[must_use]
pub fn normal_quantile(p: f64) -> f64 {
    let centred = p - 0.5;
    if centred.abs() <= 0.425 {
        let r = 0.180_625 - centred * centred;
        return centred * polynomial(&MIDDLE, r) / polynomial(&MIDDLE_BELOW, r);
    }
    let tail = if centred < 0.0 { p } else { 1.0 - p };
    let r = (-libm::log(tail)).sqrt();
    let quantile = if r <= 5.0 {
        polynomial(&TAIL, r - 1.6) / polynomial(&TAIL_BELOW, r - 1.6)
    } else {
        polynomial(&FAR, r - 5.0) / polynomial(&FAR_BELOW, r - 5.0)
    };
    if centred < 0.0 { -quantile } else { quantile }
}

/// Evaluates a polynomial with the coefficient of the lowest power first.
fn polynomial(coefficients: &[f64; 8], x: f64) -> f64 {
    let mut sum = 0.0;
    for coefficient in coefficients.iter().rev() {
        sum = sum * x + coefficient;
    }
    sum
}

const MIDDLE: [f64; 8] = [
    3.387_132_872_796_366_5,
    1.331_416_678_917_843_8e2,
    1.971_590_950_306_551_3e3,
    1.373_169_376_550_946e4,
    4.592_195_393_154_987e4,
    6.726_577_092_700_87e4,
    3.343_057_558_358_813e4,
    2.509_080_928_730_122_7e3,
];
const MIDDLE_BELOW: [f64; 8] = [
    1.0,
    4.231_333_070_160_091e1,
    6.871_870_074_920_579e2,
    5.394_196_021_424_751e3,
    2.121_379_430_158_659_7e4,
    3.930_789_580_009_271e4,
    2.872_908_573_572_194_3e4,
    5.226_495_278_852_854e3,
];
const TAIL: [f64; 8] = [
    1.423_437_110_749_683_5,
    4.630_337_846_156_546,
    5.769_497_221_460_691,
    3.647_848_324_763_204_5,
    1.270_458_252_452_368_4,
    2.417_807_251_774_506e-1,
    2.272_384_498_926_918_4e-2,
    7.745_450_142_783_414e-4,
];
const TAIL_BELOW: [f64; 8] = [
    1.0,
    2.053_191_626_637_759,
    1.676_384_830_183_803_8,
    6.897_673_349_851e-1,
    1.481_039_764_274_800_8e-1,
    1.519_866_656_361_645_7e-2,
    5.475_938_084_995_345e-4,
    1.050_750_071_644_416_9e-9,
];
const FAR: [f64; 8] = [
    6.657_904_643_501_103,
    5.463_784_911_164_114,
    1.784_826_539_917_291_3,
    2.965_605_718_285_048_7e-1,
    2.653_218_952_657_612_4e-2,
    1.242_660_947_388_078_4e-3,
    2.711_555_568_743_487_6e-5,
    2.010_334_399_292_288_1e-7,
];
const FAR_BELOW: [f64; 8] = [
    1.0,
    5.998_322_065_558_88e-1,
    1.369_298_809_227_358e-1,
    1.487_536_129_085_061_5e-2,
    7.868_691_311_456_133e-4,
    1.846_318_317_510_054_8e-5,
    1.421_511_758_316_446e-7,
    2.044_263_103_389_939_8e-15,
];

#[cfg(test)]
mod tests {
    use super::*;

    fn moments(mut draw: impl FnMut() -> f64) -> (f64, f64) {
        let count = 100_000_u32;
        let (mut sum, mut squares) = (0.0, 0.0);
        for _ in 0..count {
            let x = draw();
            sum += x;
            squares += x * x;
        }
        let mean = sum / f64::from(count);
        (mean, squares / f64::from(count) - mean * mean)
    }

    #[test]
    fn a_streams_number_is_the_hash_of_its_name() {
        assert_eq!(fnv1a(b""), 0xCBF2_9CE4_8422_2325);
        assert_eq!(fnv1a(b"a"), 0xAF63_DC4C_8601_EC8C);
        assert_eq!(fnv1a(b"foobar"), 0x8594_4171_F739_67E8);
    }

    #[test]
    fn streams_are_distinct() {
        let streams = Streams::new("torpor-node", 20_250_707);
        let first = |purpose, function| streams.stream(purpose, function).bits();
        let mut seen = vec![
            Streams::new("torpor-node", 1)
                .stream(Purpose::Rate, 0)
                .bits(),
        ];
        seen.push(
            Streams::new("other", 20_250_707)
                .stream(Purpose::Rate, 0)
                .bits(),
        );
        for purpose in [
            Purpose::Rate,
            Purpose::Shape,
            Purpose::Arrival,
            Purpose::Branch,
            Purpose::Noise,
            Purpose::Service,
        ] {
            seen.extend((0..20).map(|function| first(purpose, function)));
        }
        assert_eq!(first(Purpose::Rate, 3), first(Purpose::Rate, 3));
        let count = seen.len();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), count);
    }

    #[test]
    fn the_normal_quantile_is_accurate_in_all_three_ranges() {
        for (p, expected) in [
            (0.5, 0.0),
            (0.85, 1.036_433_389_493_789_8),
            (0.97, 1.880_793_608_151_251),
            (0.025, -1.959_963_984_540_054_5),
            (1e-12, -7.034_483_825_301_132),
            (1e-15, -7.941_345_326_170_997),
        ] {
            let found = normal_quantile(p);
            assert!((found - expected).abs() < 1e-12, "{p}: {found}");
        }
    }

    #[test]
    fn draws_have_their_means_and_variances() {
        let streams = Streams::new("moments", 7);
        let mut stream = streams.stream(Purpose::Noise, 0);
        let near = |found: (f64, f64), mean: f64, variance: f64| {
            let width = 5.0 * (variance / 100_000.0).sqrt();
            assert!((found.0 - mean).abs() < width, "{found:?} {mean}");
            assert!(
                (found.1 / variance - 1.0).abs() < 0.06,
                "{found:?} {variance}"
            );
        };
        near(moments(|| stream.unit()), 0.5, 1.0 / 12.0);
        near(moments(|| stream.uniform(-1.0, 3.0)), 1.0, 16.0 / 12.0);
        near(moments(|| stream.normal()), 0.0, 1.0);
        near(moments(|| stream.exponential()), 1.0, 1.0);
        for shape in [0.5, 1.0, 2.0, 14.0] {
            near(moments(|| stream.gamma(shape)), shape, shape);
        }
        let variance = (libm::exp(0.0225) - 1.0) * libm::exp(0.0225);
        near(
            moments(|| stream.log_normal(0.0, 0.15)),
            libm::exp(0.01125),
            variance,
        );
    }

    /// The first number is that of an independent ChaCha8; the others are fixed as drawn when the test was written, so that
    /// every machine must draw the same.
    #[test]
    fn draws_are_bit_for_bit_reproducible() {
        let mut stream = Streams::new("torpor-node", 20_250_707).stream(Purpose::Arrival, 17);
        assert_eq!(stream.bits(), 5_987_003_610_675_611_955);
        let draws = [
            stream.unit(),
            stream.normal(),
            stream.exponential(),
            stream.gamma(2.0),
            stream.gamma(0.5),
            stream.log_normal(-5.0, 4.8),
        ];
        assert_eq!(
            draws.map(f64::to_bits),
            [
                4_603_190_369_515_758_025,
                4_612_024_166_009_617_088,
                4_603_293_341_832_610_582,
                4_594_888_505_296_825_766,
                4_594_979_483_027_320_170,
                4_564_947_850_587_311_367,
            ]
        );
    }
}
