//! `weir softgpu`: installs, inspects and draws a software GPU for CUDA programs.

mod ledger;
mod path;
mod status;

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use ::softgpu::observer::Observer;
use anyhow::Context as _;
use clap::{Args, Subcommand};
use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, Table};
use softgpu_wire::config::Config;

/// Arguments of `weir softgpu`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Install the stand-ins for NVIDIA's libraries and print their folder: LD_LIBRARY_PATH=$(weir softgpu path) ./program
    Path(path::Arguments),
    /// Show the use of SMs, links and memory over time.
    Ledger(ledger::Arguments),
    /// Show the server's state and the processes on the GPUs.
    Status(status::Arguments),
    /// Inject a fault into a GPU.
    Inject(Inject),
    /// Run the server in the foreground; programs start one by themselves.
    Server(Server),
}

/// Option for the software GPU's folder.
#[derive(Debug, Args)]
struct SoftGpuDir {
    /// The software GPU's folder [default: $WEIR_SOFTGPU, else $XDG_CACHE_HOME/weir/softgpu, else
    /// $HOME/.cache/weir/softgpu]
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct Inject {
    /// GPU, counted from 0.
    #[arg(long, value_name = "N", default_value_t = 0)]
    gpu: u64,
    /// The Xid: all observers of events receive it; after 79 the GPU is lost until its server has ended.
    #[arg(long, value_name = "X", value_parser = clap::value_parser!(u64).range(1..=999))]
    xid: u64,
    #[command(flatten)]
    dir: SoftGpuDir,
}

#[derive(Debug, Args)]
struct Server {
    /// Stay without clients, until SIGTERM, as it does in the foreground anyway.
    #[arg(long)]
    stay: bool,
    #[command(flatten)]
    dir: SoftGpuDir,
}

/// A usage error: exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Usage(String);

/// Runs the command. Returns exit code 2 if the options or a configuration are unusable, 1 on any other failure or if no server
/// runs that could be queried.
pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    let done = match &arguments.command {
        Command::Path(arguments) => path::run(arguments),
        Command::Ledger(arguments) => ledger::run(arguments),
        Command::Status(arguments) => status::run(arguments),
        Command::Inject(arguments) => inject(arguments),
        Command::Server(arguments) => server(arguments),
    };
    done.unwrap_or_else(|error| {
        report(&format!("{error:#}"));
        ExitCode::from(if is_usage(&error) { 2 } else { 1 })
    })
}

fn is_usage(error: &anyhow::Error) -> bool {
    use ::softgpu::install::InstallError;
    let install = error.downcast_ref::<InstallError>();
    // A folder that cannot be created is a wrong option.
    let is_option = |error: &io::Error| {
        use io::ErrorKind::{NotADirectory, NotFound, PermissionDenied, ReadOnlyFilesystem};
        matches!(
            error.kind(),
            NotADirectory | NotFound | PermissionDenied | ReadOnlyFilesystem
        )
    };
    let is_configuration = match install {
        Some(InstallError::Config(_) | InstallError::Configured { .. }) => true,
        Some(InstallError::File { error, .. }) => is_option(error),
        _ => false,
    };
    is_configuration || error.is::<Usage>() || error.is::<::softgpu::NoFolder>()
}

impl SoftGpuDir {
    /// Returns the folder as an absolute path.
    fn folder(&self) -> anyhow::Result<PathBuf> {
        let folder = match &self.folder {
            Some(folder) if folder.as_os_str().is_empty() => {
                return Err(Usage("--folder: a folder is needed".to_owned()).into());
            }
            Some(folder) => folder.clone(),
            None => ::softgpu::default_folder()?,
        };
        std::path::absolute(&folder).with_context(|| folder.display().to_string())
    }

    /// Returns the folder as an absolute path.
    ///
    /// # Errors
    /// The folder does not exist.
    fn existing(&self) -> anyhow::Result<PathBuf> {
        let folder = self.folder()?;
        if folder.is_dir() {
            return Ok(folder);
        }
        Err(Usage(format!(
            "{}: no such folder; `weir softgpu path --folder DIR` makes one",
            folder.display()
        ))
        .into())
    }
}

/// Returns the configuration of a folder: that of its server, else that of its file, else the default.
fn configuration(folder: &Path, observer: Option<&Observer>) -> anyhow::Result<Config> {
    match observer {
        Some(observer) => Ok(observer.config.clone()),
        None => Ok(::softgpu::install::configured(folder)?.unwrap_or_default()),
    }
}

fn no_server(folder: &Path) -> String {
    format!(
        "{}: no server runs there; a program that uses the software GPU starts one",
        folder.display()
    )
}

fn inject(arguments: &Inject) -> anyhow::Result<ExitCode> {
    let folder = arguments.dir.existing()?;
    let Some(observer) = Observer::open(&folder)? else {
        report(&no_server(&folder));
        return Ok(ExitCode::FAILURE);
    };
    let gpus: u32 = observer.config.gpus.iter().map(|gpu| gpu.count).sum();
    if arguments.gpu >= u64::from(gpus) {
        let allowed = format!("allowed: 0 to {}", gpus.saturating_sub(1));
        return Err(Usage(format!("--gpu {}: {allowed}", arguments.gpu)).into());
    }
    observer.inject(arguments.gpu, arguments.xid)?;
    Ok(ExitCode::SUCCESS)
}

fn server(arguments: &Server) -> anyhow::Result<ExitCode> {
    let folder = arguments.dir.folder()?;
    ::softgpu::install::make_folder(&folder)?;
    let mut given = vec![OsString::from("--folder"), folder.into_os_string()];
    if arguments.stay {
        given.push(OsString::from("--stay"));
    }
    let name = softgpu_wire::softgpu_dir::SERVER;
    let code = ::softgpu::run_as(name.as_ref(), given.into_iter());
    code.context("this program was built without the server")
}

/// Prints a message on stderr.
fn report(why: &str) {
    // A failed write to stderr cannot be reported.
    let _written = writeln!(io::stderr(), "weir: {why}");
}

/// Prints bytes on stdout. A closed pipe is no error.
fn print(bytes: &[u8]) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(error).context("standard output")
        }
        _ => Ok(()),
    }
}

/// Creates a table with the first `left` columns left-aligned for text, the others right-aligned for numbers.
fn new_table(heading: &[&str], left: usize) -> Table {
    let mut table = Table::new();
    table
        .load_style(UTF8_FULL_CONDENSED)
        .set_header(heading.iter().copied());
    for column in table.column_iter_mut().skip(left) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}
