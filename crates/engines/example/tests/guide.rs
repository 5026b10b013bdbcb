//! `docs/writing-an-engine.md` shows this engine: every block of Rust in it is compiled and run here, since it is a part of the
//! sources word by word.

const GUIDE: &str = include_str!("../../../../docs/writing-an-engine.md");
const SOURCES: [&str; 5] = [
    include_str!("../src/api.rs"),
    include_str!("../src/plan.rs"),
    include_str!("../src/driver.rs"),
    include_str!("../src/sim.rs"),
    include_str!("on_embedded_kube.rs"),
];

#[test]
fn the_guide_shows_what_is_compiled() {
    let blocks: Vec<&str> = GUIDE
        .split("```rust\n")
        .skip(1)
        .filter_map(|rest| rest.split("```").next())
        .collect();
    assert!(blocks.len() >= 5, "the guide has {} blocks", blocks.len());
    for block in blocks {
        let is_there = SOURCES.iter().any(|source| source.contains(block));
        assert!(is_there, "the example has no such lines:\n{block}");
    }
}
