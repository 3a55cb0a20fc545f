//! `weir completions` and `weir man`: shell completions and manual pages generated from the command line's definition.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, ensure};
use clap::{Args, Command, CommandFactory as _, ValueEnum};
use clap_complete::Shell;
use clap_mangen::Man;

use crate::output::print;

/// Shell for which completions are generated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ShellName {
    Bash,
    Zsh,
    Fish,
}

/// Arguments of `weir completions`.
#[derive(Debug, Args)]
#[command(after_help = "\
  bash: weir completions bash > ~/.local/share/bash-completion/completions/weir
  zsh:  weir completions zsh > a folder of $fpath/_weir
  fish: weir completions fish > ~/.config/fish/completions/weir.fish")]
pub(crate) struct CompletionsArguments {
    /// Shell to print completions for.
    #[arg(value_enum)]
    shell: ShellName,
}

/// Arguments of `weir man`.
#[derive(Debug, Args)]
pub(crate) struct ManArguments {
    /// Write the pages of all commands into this folder, as weir.1, weir-demo.1 …; without it that of weir is printed.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// Prints the completions of a shell to stdout.
pub(crate) fn completions(arguments: &CompletionsArguments) -> anyhow::Result<ExitCode> {
    let shell = match arguments.shell {
        ShellName::Bash => Shell::Bash,
        ShellName::Zsh => Shell::Zsh,
        ShellName::Fish => Shell::Fish,
    };
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut visible(), "weir", &mut script);
    print(&String::from_utf8(script)?)?;
    Ok(ExitCode::SUCCESS)
}

/// Prints the command's manual page, or writes those of all commands into a folder.
pub(crate) fn man(arguments: &ManArguments) -> anyhow::Result<ExitCode> {
    let command = visible();
    match &arguments.out {
        None => print(&String::from_utf8(page(&command)?)?)?,
        Some(folder) => {
            ensure!(
                folder.is_dir(),
                "--out {}: not an existing folder",
                folder.display()
            );
            write(&command, "weir", folder)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the command line without hidden subcommands.
fn visible() -> Command {
    let command = crate::Arguments::command();
    let hidden: Vec<String> = command
        .get_subcommands()
        .filter(|own| own.is_hide_set())
        .map(|own| own.get_name().to_owned())
        .collect();
    let shown: Vec<Command> = command
        .get_subcommands()
        .filter(|own| !hidden.iter().any(|name| name == own.get_name()))
        .cloned()
        .collect();
    // clap cannot remove a subcommand, so the command is rebuilt with the others.
    Command::new("weir")
        .version(env!("CARGO_PKG_VERSION"))
        .about(command.get_about().cloned().unwrap_or_default())
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommands(shown)
}

fn page(command: &Command) -> anyhow::Result<Vec<u8>> {
    let mut page = Vec::new();
    Man::new(command.clone()).render(&mut page)?;
    Ok(page)
}

/// Writes the manual page of a command and of its subcommands.
fn write(command: &Command, name: &str, folder: &Path) -> anyhow::Result<()> {
    // A page is named by the full command, as weir-demo.1.
    let named = command
        .clone()
        .display_name(name.to_owned())
        .bin_name(name.replace('-', " "));
    let path = folder.join(format!("{name}.1"));
    let written = std::fs::File::create(&path).and_then(|mut file| {
        let page = page(&named).map_err(std::io::Error::other)?;
        file.write_all(&page)
    });
    written.with_context(|| format!("{} cannot be written", path.display()))?;
    for own in command
        .get_subcommands()
        .filter(|own| own.get_name() != "help")
    {
        write(own, &format!("{name}-{}", own.get_name()), folder)?;
    }
    Ok(())
}
