//! `sim`: runs histories of the planner and reports those that break a rule.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use stateward_sim::{REAL, Table, replay, run_many};

/// Runs simulated histories of the planner, with faults drawn from seeds
#[derive(Parser)]
#[command(name = "sim")]
struct Arguments {
    /// How many histories to run
    #[arg(long, default_value_t = 20_000)]
    seeds: u64,
    /// The first seed
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Print the history of this seed, line by line
    #[arg(long)]
    replay: Option<u64>,
    /// Stop after so many histories that break a rule
    #[arg(long, default_value_t = 20)]
    enough: usize,
    /// Run planners and drivers that are broken on purpose, and print which rule catches which; with a text, only those
    /// whose name contains it
    #[arg(long, value_name = "TEXT", num_args = 0..=1, default_missing_value = "")]
    mutants: Option<String>,
}

/// Each mutant must be caught within so many histories.
const HISTORIES_OF_A_MUTANT: u64 = 3000;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(seed) = arguments.replay {
        return print_history(seed);
    }
    if let Some(text) = &arguments.mutants {
        return mutants(text);
    }
    let start = Instant::now();
    let summary = run_many(&REAL, arguments.from, arguments.seeds, arguments.enough);
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "{} histories in {seconds:.1} s ({:.0}/s): {} reconciles, {:.0} virtual hours, {} acknowledged writes; {} converged, {} lost a majority of volumes and reported it",
        summary.histories,
        summary.histories as f64 / seconds,
        summary.rounds,
        summary.hours,
        summary.writes,
        summary.at_rest,
        summary.histories - summary.at_rest - summary.broken.len() as u64,
    );
    let mut by_rule: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    for (seed, outcome) in &summary.broken {
        if let Some(broken) = &outcome.broken {
            by_rule.entry(broken.rule).or_default().push(*seed);
            println!("seed {seed}: {}: {}", broken.rule, broken.what);
        }
    }
    for (rule, seeds) in &by_rule {
        println!("{} broke \"{rule}\"", seeds.len());
    }
    match summary.broken.keys().next() {
        None => ExitCode::SUCCESS,
        Some(seed) => {
            println!("print it with: ./x sim --replay {seed}");
            ExitCode::FAILURE
        }
    }
}

fn mutants(text: &str) -> ExitCode {
    let table = Table::of(HISTORIES_OF_A_MUTANT, text, |line| eprintln!("{line}"));
    print!("{table}");
    let problems = table.problems();
    for problem in &problems {
        println!("{problem}");
    }
    if problems.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn print_history(seed: u64) -> ExitCode {
    let outcome = replay(&REAL, seed);
    for line in &outcome.story {
        println!("{line}");
    }
    match outcome.broken {
        None => {
            println!("seed {seed} keeps every rule");
            ExitCode::SUCCESS
        }
        Some(broken) => {
            println!("seed {seed} broke \"{}\": {}", broken.rule, broken.what);
            ExitCode::FAILURE
        }
    }
}
