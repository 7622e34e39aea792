// Compares KokoroHost with the test vectors, to the bit:
//   kotlinc KokoroHost.kt HostCheck.kt -include-runtime -d check.jar && java -jar check.jar host_vectors.txt

import java.io.File
import kotlin.system.exitProcess

private class Case(val step: String, private val values: Map<String, List<String>>) {
    fun ints(name: String) = values.getValue(name).map { it.toInt() }.toIntArray()
    fun longs(name: String) = values.getValue(name).map { it.toLong() }.toLongArray()
    fun int(name: String) = ints(name).single()
    fun long(name: String) = longs(name).single()
    fun floats(name: String) =
        values.getValue(name).map { Float.fromBits(it.toLong(16).toInt()) }.toFloatArray()

    /** Where a result differs from the expected one in a bit; null where it does not. */
    fun difference(result: FloatArray): String? {
        val expected = floats("expected")
        if (result.size != expected.size) return "${result.size} values instead of ${expected.size}"
        val at = result.indices.firstOrNull { result[it].toRawBits() != expected[it].toRawBits() } ?: return null
        return "value $at is ${result[at]} instead of ${expected[at]}"
    }

    fun difference(result: LongArray): String? =
        if (result.contentEquals(longs("expected"))) null else "${result.toList()} instead of ${longs("expected").toList()}"

    fun check(): String? = when (step) {
        "align" -> difference(KokoroHost.align(floats("features"), ints("durations")))
        "select_bucket" -> difference(longArrayOf(KokoroHost.selectBucket(int("frames"), ints("buckets").toList()).toLong()))
        "pad" -> difference(KokoroHost.pad(floats("values"), int("rows"), int("width")))
        "frame_mask" -> difference(KokoroHost.frameMask(int("frames"), int("bucket")))
        "frame_ratio" -> difference(KokoroHost.frameRatio(int("frames"), int("bucket")))
        "trim" -> difference(KokoroHost.trim(floats("audio"), int("frames")))
        "tokens" -> difference(KokoroHost.tokens(longs("ids")))
        "voice_row" -> difference(KokoroHost.voiceRow(floats("pack"), int("columns"), int("phonemes")))
        "source_noise" -> difference(KokoroHost.sourceNoise(long("seed"), long("index"), int("count")))
        else -> "a step that this program does not know"
    }
}

private fun read(path: String): List<Case> =
    File(path).readText().split("\n\n").map { block ->
        block.lines().filter { it.isNotBlank() && !it.startsWith("#") }.map { it.trim().split(" ") }
    }.filter { it.isNotEmpty() }.map { lines -> Case(lines[0][0], lines.drop(1).associate { it[0] to it.drop(1) }) }

fun main(arguments: Array<String>) {
    val cases = read(arguments.single())
    var wrong = 0
    for ((number, case) in cases.withIndex()) {
        val difference = case.check() ?: continue
        println("case ${number + 1}, ${case.step}: $difference")
        wrong++
    }
    println("${cases.size - wrong} of ${cases.size} cases equal to the bit")
    if (wrong > 0 || cases.isEmpty()) exitProcess(1)
}
