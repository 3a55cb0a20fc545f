//! Checks the PTX text against the functions: a small interpreter runs the kernels' PTX, thread by thread, over many
//! launch shapes, and compares the resulting memory with that of `effect`.
//!
//! It supports only the instructions that occur. No thread of these kernels waits for another, so each runs to its end
//! before the next one begins.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::HashMap;

use kernels::{Busy, Kernel, Launch, Law, PTX, effect};

/// First address of the simulated memory.
const BASE: u64 = 0x7f12_0000_1000;

type Shape = [u64; 3];

#[derive(Debug)]
struct Function {
    lines: Vec<String>,
    labels: HashMap<String, usize>,
}

/// Returns the instructions of a function, without declarations and braces.
fn function(name: &str) -> Function {
    let text: String = PTX
        .lines()
        .map(|line| line.split("//").next().unwrap())
        .fold(String::new(), |text, line| text + line + "\n");
    let (_, rest) = text.split_once(&format!(" {name}(")).unwrap();
    let (_, body) = rest.split_once("\n{\n").unwrap();
    let (body, _) = body.split_once("\n}\n").unwrap();
    let (mut lines, mut labels) = (Vec::new(), HashMap::new());
    for line in body.lines().map(str::trim) {
        if let Some(label) = line.strip_suffix(':') {
            labels.insert(label.to_owned(), lines.len());
        } else if !line.is_empty() && !line.starts_with('.') && line != "{" && line != "}" {
            lines.push(line.strip_suffix(';').unwrap().to_owned());
        }
    }
    Function { lines, labels }
}

/// State of one launch.
struct Machine<'a> {
    memory: &'a mut [u8],
    /// Values of the kernel's parameters by name.
    parameters: HashMap<String, u64>,
    functions: HashMap<&'static str, Function>,
    grid: Shape,
    block: Shape,
    clock: u64,
}

/// Indices of a thread (`lane`) and of its block.
#[derive(Clone, Copy)]
struct Thread {
    block: Shape,
    lane: Shape,
}

fn float(bits: u64) -> f32 {
    f32::from_bits(u32::try_from(bits).unwrap())
}

fn bits(value: f32) -> u64 {
    u64::from(value.to_bits())
}

fn narrow(value: u64) -> u64 {
    value & 0xffff_ffff
}

impl Machine<'_> {
    fn at(&mut self, address: u64, length: usize) -> &mut [u8] {
        let from = usize::try_from(address.checked_sub(BASE).unwrap()).unwrap();
        assert_eq!(from % length, 0, "aligned");
        &mut self.memory[from..][..length]
    }

    fn load(&mut self, address: u64) -> u64 {
        u64::from(u32::from_le_bytes(self.at(address, 4).try_into().unwrap()))
    }

    fn special(&mut self, name: &str, thread: Thread) -> Option<u64> {
        if name == "%globaltimer" {
            self.clock += 100;
            return Some(self.clock);
        }
        let (kind, axis) = name.split_once('.')?;
        let axis = ["x", "y", "z"].iter().position(|own| *own == axis)?;
        match kind {
            "%tid" => Some(thread.lane[axis]),
            "%ctaid" => Some(thread.block[axis]),
            "%ntid" => Some(self.block[axis]),
            "%nctaid" => Some(self.grid[axis]),
            _ => None,
        }
    }

    /// Runs a function up to its `ret` and returns the result that it stored, or 0 without one.
    fn call(&mut self, name: &'static str, thread: Thread) -> u64 {
        let mut registers: HashMap<String, u64> = HashMap::new();
        let (mut result, mut called) = (0, 0);
        let mut next = 0;
        loop {
            let line = self.functions[name].lines[next].clone();
            next += 1;
            let (guard, line) = match line.strip_prefix('@') {
                Some(rest) => {
                    let (guard, rest) = rest.split_once(' ').unwrap();
                    (Some(guard.to_owned()), rest.trim().to_owned())
                }
                None => (None, line),
            };
            if guard.is_some_and(|guard| registers[&guard] == 0) {
                continue;
            }
            let (operation, operands) = line.split_once(' ').unwrap_or((&line, ""));
            let operands: Vec<&str> = operands.split(',').map(str::trim).collect();
            let inner = |operand: &str| operand[1..operand.len() - 1].to_owned();
            let mut value = |operand: &str| -> u64 {
                if let Some(hex) = operand.strip_prefix("0x") {
                    u64::from_str_radix(hex, 16).unwrap()
                } else if let Some(hex) = operand.strip_prefix("0f") {
                    u64::from_str_radix(hex, 16).unwrap()
                } else if !operand.starts_with('%') {
                    operand.parse().unwrap()
                } else {
                    self.special(operand, thread)
                        .unwrap_or_else(|| registers[operand])
                }
            };
            let set = match operation {
                "ret" => return result,
                "bra" => {
                    next = self.functions[name].labels[operands[0]];
                    continue;
                }
                "call.uni" => {
                    let name = match operands[1] {
                        "weir_thread" => "weir_thread",
                        "weir_threads" => "weir_threads",
                        other => panic!("{other}: unknown function"),
                    };
                    called = self.call(name, thread);
                    continue;
                }
                "st.param.b64" => {
                    result = value(operands[1]);
                    continue;
                }
                "st.global.u32" | "st.global.f32" => {
                    let stored = u32::try_from(value(operands[1])).unwrap();
                    let address = registers[&inner(operands[0])];
                    self.at(address, 4).copy_from_slice(&stored.to_le_bytes());
                    continue;
                }
                "red.global.add.u64" => {
                    let added = value(operands[1]);
                    let address = registers[&inner(operands[0])];
                    let place = self.at(address, 8);
                    let old = u64::from_le_bytes((&*place).try_into().unwrap());
                    place.copy_from_slice(&old.wrapping_add(added).to_le_bytes());
                    continue;
                }
                "ld.param.b64" => called,
                "ld.param.u64" | "ld.param.u32" | "ld.param.f32" => {
                    self.parameters[&inner(operands[1])]
                }
                "ld.global.u64" => {
                    let address = registers[&inner(operands[1])];
                    u64::from_le_bytes((&*self.at(address, 8)).try_into().unwrap())
                }
                "ld.global.u32" | "ld.global.f32" => {
                    let address = registers[&inner(operands[1])];
                    self.load(address)
                }
                "mov.u32" | "mov.u64" | "mov.f32" | "cvt.u64.u32" | "cvta.to.global.u64" => {
                    value(operands[1])
                }
                "mul.wide.u32" => value(operands[1]) * value(operands[2]),
                "mul.lo.u32" => narrow(value(operands[1]) * value(operands[2])),
                "mul.lo.u64" => value(operands[1]).wrapping_mul(value(operands[2])),
                "mad.lo.u32" => {
                    narrow(value(operands[1]) * value(operands[2]) + value(operands[3]))
                }
                "add.u32" => narrow(value(operands[1]) + value(operands[2])),
                "add.u64" => value(operands[1]).wrapping_add(value(operands[2])),
                "sub.u64" => value(operands[1]).wrapping_sub(value(operands[2])),
                "div.u64" => value(operands[1]) / value(operands[2]),
                "shl.b64" => value(operands[1]) << value(operands[2]),
                "shr.u64" => value(operands[1]) >> value(operands[2]),
                "xor.b64" => value(operands[1]) ^ value(operands[2]),
                "setp.ge.u64" => u64::from(value(operands[1]) >= value(operands[2])),
                "setp.lt.u64" => u64::from(value(operands[1]) < value(operands[2])),
                "add.rn.f32" => bits(float(value(operands[1])) + float(value(operands[2]))),
                "fma.rn.f32" => {
                    let (a, b) = (float(value(operands[1])), float(value(operands[2])));
                    bits(a.mul_add(b, float(value(operands[3]))))
                }
                other => panic!("{other}: unknown instruction"),
            };
            registers.insert(operands[0].to_owned(), set);
        }
    }
}

fn threads(of: Shape) -> impl Iterator<Item = Shape> {
    (0..of[2]).flat_map(move |z| (0..of[1]).flat_map(move |y| (0..of[0]).map(move |x| [x, y, z])))
}

/// Runs a launch by interpreting its text; returns the value of the GPU's clock at the end.
fn run(launch: &Launch, memory: &mut [u8], grid: Shape, block: Shape) -> u64 {
    let kernel = launch.kernel();
    let (_, head) = PTX
        .split_once(&format!(".entry {}(", kernel.name()))
        .unwrap();
    let (head, _) = head.split_once(')').unwrap();
    let names = head.split(',').map(|one| one.split_whitespace().last());
    let buffer = launch.encode();
    let values = kernel.parameters().iter().map(|parameter| {
        let mut bytes = [0; 8];
        bytes[..parameter.size].copy_from_slice(&buffer[parameter.offset..][..parameter.size]);
        u64::from_le_bytes(bytes)
    });
    let parameters = names.map(|name| name.unwrap().to_owned());
    let functions = ["weir_thread", "weir_threads", kernel.name()];
    let mut machine = Machine {
        memory,
        parameters: parameters.zip(values).collect(),
        functions: functions.map(|name| (name, function(name))).into(),
        grid,
        block,
        clock: 1 << 60,
    };
    for number in threads(grid) {
        for lane in threads(block) {
            machine.call(
                kernel.name(),
                Thread {
                    block: number,
                    lane,
                },
            );
        }
    }
    machine.clock
}

/// Launch shapes, from one thread to more threads than elements, in all dimensions.
const SHAPES: [(Shape, Shape); 5] = [
    ([1, 1, 1], [1, 1, 1]),
    ([3, 1, 1], [5, 1, 1]),
    ([1, 2, 3], [2, 1, 2]),
    ([2, 3, 2], [4, 2, 3]),
    ([1, 1, 1], [7, 9, 3]),
];
const SIZES: [usize; 5] = [0, 1, 7, 64, 101];

/// Returns memory in which the words differ and no word is a NaN as a float.
fn filled(length: usize) -> Vec<u8> {
    let words = (0..length.div_ceil(4)).map(|n| {
        let word = effect::mix(0, u32::try_from(n).unwrap());
        let value = f32::from(i16::try_from(word % 20_001).unwrap() - 10_000) / 977.0;
        value.to_le_bytes()
    });
    words.flatten().take(length).collect()
}

fn words(bytes: &[u8]) -> Vec<u32> {
    let words = bytes.chunks_exact(4);
    words
        .map(|word| u32::from_le_bytes(word.try_into().unwrap()))
        .collect()
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    words(bytes).into_iter().map(f32::from_bits).collect()
}

fn put(memory: &mut [u8], at: usize, values: impl IntoIterator<Item = u32>) {
    for (place, value) in memory[at..].chunks_exact_mut(4).zip(values) {
        place.copy_from_slice(&value.to_le_bytes());
    }
}

/// Returns the memory after the launch, as computed by `effect`.
fn expected(launch: &Launch, memory: &[u8]) -> Vec<u8> {
    let mut after = memory.to_vec();
    let place = |address: u64| usize::try_from(address - BASE).unwrap();
    let length = |n: u64| usize::try_from(n).unwrap() * 4;
    let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits);
    let of = |address: u64, n: u64| floats(&memory[place(address)..][..length(n)]);
    let mut add = |out: u64, sum: u64| {
        let at = place(out);
        let old = u64::from_le_bytes(after[at..][..8].try_into().unwrap());
        after[at..][..8].copy_from_slice(&old.wrapping_add(sum).to_le_bytes());
    };
    match *launch {
        Launch::Spin(_) => {}
        Launch::Layer {
            out,
            input,
            words: n,
            ..
        } => add(
            out,
            effect::hash(0, &words(&memory[place(input)..][..length(n)])),
        ),
        Launch::HiddenLayer {
            out,
            table,
            index,
            words: n,
            ..
        } => {
            let entry = &memory[place(table + 8 * index)..][..8];
            let input = u64::from_le_bytes(entry.try_into().unwrap());
            add(
                out,
                effect::hash(0, &words(&memory[place(input)..][..length(n)])),
            );
        }
        Launch::Fill {
            out,
            words: n,
            value,
        } => {
            let mut filled = words(&memory[place(out)..][..length(n)]);
            effect::fill(&mut filled, value);
            put(&mut after, place(out), filled);
        }
        Launch::Sum {
            out,
            input,
            words: n,
        } => add(
            out,
            effect::sum(&words(&memory[place(input)..][..length(n)])),
        ),
        Launch::Hash {
            out,
            input,
            words: n,
        } => add(
            out,
            effect::hash(0, &words(&memory[place(input)..][..length(n)])),
        ),
        Launch::GranuleHash {
            out,
            table,
            granules,
            words: n,
        } => {
            let wide = |at: usize| u64::from_le_bytes(memory[at..][..8].try_into().unwrap());
            for granule in 0..granules {
                let input = place(wide(place(table + 8 * granule)));
                let words: Vec<u64> = (0..usize::try_from(n).unwrap())
                    .map(|word| wide(input + 8 * word))
                    .collect();
                let [one, two] = effect::granule_hash(&words);
                add(out + 16 * granule, one);
                add(out + 16 * granule + 8, two);
            }
        }
        Launch::Add { c, a, b, n } => {
            let mut sums = of(c, n);
            effect::add(&mut sums, &of(a, n), &of(b, n));
            put(&mut after, place(c), bits(sums));
        }
        Launch::Saxpy { y, x, n, a } => {
            let mut sums = of(y, n);
            effect::saxpy(&mut sums, &of(x, n), a);
            put(&mut after, place(y), bits(sums));
        }
        Launch::Matmul { c, a, b, n } => {
            let all = u64::from(n) * u64::from(n);
            let mut product = of(c, all);
            effect::matmul(
                &mut product,
                &of(a, all),
                &of(b, all),
                usize::try_from(n).unwrap(),
            );
            put(&mut after, place(c), bits(product));
        }
    }
    after
}

/// Time of a kernel of 1 µs.
const BUSY: Busy = Busy {
    ns: 1_000,
    law: Law::Linear,
    interference_millionths: 0,
};

fn check(launch: impl Fn(u64) -> Launch) {
    check_in(&filled(2_048), launch);
}

fn check_in(memory: &[u8], launch: impl Fn(u64) -> Launch) {
    for size in SIZES {
        let launch = launch(u64::try_from(size).unwrap());
        for (grid, block) in SHAPES {
            let before = memory.to_vec();
            let mut memory = before.clone();
            run(&launch, &mut memory, grid, block);
            assert_eq!(
                memory,
                expected(&launch, &before),
                "{launch:?} {grid:?} {block:?}"
            );
        }
    }
}

#[test]
fn the_text_of_fill_matches_its_effect() {
    check(|words| Launch::Fill {
        out: BASE + 16,
        words,
        value: 0xdead_beef,
    });
}

#[test]
fn the_text_of_sum_matches_its_effect() {
    check(|words| Launch::Sum {
        out: BASE + 8,
        input: BASE + 1_004,
        words,
    });
}

#[test]
fn the_text_of_hash_matches_its_effect() {
    check(|words| Launch::Hash {
        out: BASE + 24,
        input: BASE + 516,
        words,
    });
}

#[test]
fn the_text_of_layer_matches_its_effect() {
    check(|words| Launch::Layer {
        busy: BUSY,
        out: BASE + 24,
        input: BASE + 516,
        words,
    });
}

#[test]
fn the_text_of_hidden_layer_matches_its_effect() {
    let mut memory = filled(2_048);
    memory[1_024 + 8 * 3..][..8].copy_from_slice(&(BASE + 516).to_le_bytes());
    check_in(&memory, |words| Launch::HiddenLayer {
        busy: BUSY,
        out: BASE + 24,
        table: BASE + 1_024,
        index: 3,
        words,
    });
}

#[test]
fn the_text_of_granule_hash_matches_its_effect() {
    // Granules of more words than the 256 at a time, and of fewer.
    for words in [1, 255, 256, 257, 600] {
        let mut memory = filled(8_192);
        for (granule, at) in [512, 1_536, 2_944].into_iter().enumerate() {
            let address: u64 = BASE + at;
            memory[256 + 8 * granule..][..8].copy_from_slice(&address.to_le_bytes());
        }
        for granules in 0..=3 {
            let launch = Launch::GranuleHash {
                out: BASE + 16,
                table: BASE + 256,
                granules,
                words,
            };
            for (grid, block) in [([1, 1, 1], [1, 1, 1]), ([3, 1, 1], [64, 2, 1])] {
                let mut after = memory.clone();
                run(&launch, &mut after, grid, block);
                assert_eq!(after, expected(&launch, &memory), "{launch:?} {grid:?}");
            }
        }
    }
}

#[test]
fn every_thread_of_a_layer_runs_for_at_least_the_given_time() {
    let launch = Launch::Layer {
        busy: BUSY,
        out: BASE,
        input: BASE + 512,
        words: 0,
    };
    let mut memory = filled(1_024);
    let end = run(&launch, &mut memory, [2, 1, 1], [3, 1, 1]);
    assert_eq!(end - (1 << 60), 6 * 1_100);
    assert_eq!(memory, filled(1_024));
}

#[test]
fn the_text_of_add_matches_its_effect() {
    check(|n| Launch::Add {
        c: BASE + 4,
        a: BASE + 512,
        b: BASE + 1_024,
        n,
    });
}

#[test]
fn the_text_of_saxpy_matches_its_effect() {
    check(|n| Launch::Saxpy {
        y: BASE + 4,
        x: BASE + 512,
        n,
        a: -1.375,
    });
}

#[test]
fn the_text_of_matmul_matches_its_effect() {
    check(|n| Launch::Matmul {
        c: BASE,
        a: BASE + 600,
        b: BASE + 1_204,
        n: u32::try_from(n % 13).unwrap(),
    });
}

#[test]
fn every_thread_of_spin_runs_for_the_given_time() {
    let launch = Launch::Spin(BUSY);
    let mut memory = filled(16);
    let end = run(&launch, &mut memory, [2, 1, 1], [3, 1, 1]);
    // Six threads, each of which reads the clock once more than its 1,000 ns require; a read takes 100 ns.
    assert_eq!(end - (1 << 60), 6 * 1_100);
    assert_eq!(memory, filled(16));
    assert_eq!(Kernel::by_name("weir_spin"), Some(launch.kernel()));
}
